"""`cosyd say`: what to say and how. Where the sound goes: `daemon.cli.outlet`; how it is made:
`daemon.cli.speaking`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from daemon.cli.frame import Command, Option, json_option, state_option
from daemon.cli.outlet import Outlet, outlet_options
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.voices.styles import instruction


def read_text(argument: str) -> str:
    """The text itself, or stdin for `-`. Raises CosydError(bad_value) when stdin is not UTF-8."""
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CosydError("bad_value", field="TEXT", reason="not_utf8") from None


@click.command(cls=Command, help_key="help_say", example='cosyd say "Good evening." -o evening.mp3')
@click.argument("words", metavar="TEXT", nargs=-1, required=True)
@outlet_options
@click.option("--voice", cls=Option, metavar="ID", default="", help="opt_voice")
@click.option("--style", cls=Option, metavar="NAME|TEXT", default="", help="opt_style")
@click.option("--dialect", cls=Option, metavar="NAME", default="", help="opt_dialect")
@click.option("--instruct", cls=Option, metavar="TEXT", default="", help="opt_instruct")
@click.option("--speed", cls=Option, type=float, metavar="0.25..4", help="opt_speed")
@click.option("--seed", cls=Option, type=int, metavar="N", help="opt_seed")
@click.option("--language", "tag", cls=Option, metavar="TAG", help="opt_language")
@state_option
@json_option
def say(
    words: tuple[str, ...],
    output: Path | None,
    play: bool,
    voice: str,
    style: str,
    dialect: str,
    instruct: str,
    speed: float | None,
    seed: int | None,
    tag: str | None,
    format_: str | None,
    paths: StatePaths,
    as_json: bool,
) -> None:
    """Speak a text: to a file, to the loudspeaker, or as wav into a pipe."""
    outlet = Outlet.choose(output, play, format_, as_json)
    fields: dict[str, object] = {"text": read_text(" ".join(words)), "voice": voice}
    how = instruction(dialect, style, instruct)
    chosen = (("instruct", how), ("speed", speed), ("seed", seed), ("language", tag))
    fields |= {k: v for k, v in chosen if v is not None}
    outlet.deliver(paths, fields)
