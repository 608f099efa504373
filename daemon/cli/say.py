"""`cosyd say`: what to say and where the sound goes. How it is made: `daemon.cli.speaking`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from daemon.cli.frame import Command, Option, json_option, note, print_json, state_option, usage
from daemon.cli.player import find_player
from pipeline.codes import CosydError
from pipeline.jobs import FORMATS
from pipeline.paths import StatePaths

SUFFIXES = {"wave": "wav", "ogg": "opus", "oga": "opus", "m4a": "aac", "raw": "pcm"}
"""File name endings that people use for our formats."""


def read_text(argument: str) -> str:
    """The text itself, or stdin for `-`. Raises CosydError(bad_value) when stdin is not UTF-8."""
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CosydError("bad_value", field="TEXT", reason="not_utf8") from None


def choose_format(chosen: str | None, output: Path | None) -> str:
    """`--format`, else by the file's ending, else wav. Raises CosydError(unknown_format)."""
    if chosen is not None:
        return chosen
    if output is None or not output.suffix:
        return "wav"
    ending = output.suffix[1:].lower()
    ending = SUFFIXES.get(ending, ending)
    if ending not in FORMATS:
        raise CosydError("unknown_format", value=output.suffix[1:][:80], allowed=", ".join(FORMATS))
    return ending


@click.command(cls=Command, help_key="help_say", example='cosyd say "Good evening." -o evening.mp3')
@click.argument("words", metavar="TEXT")
@click.option(
    "-o",
    "--output",
    cls=Option,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="opt_output",
)
@click.option("--play", cls=Option, is_flag=True, help="opt_play")
@click.option("--voice", cls=Option, metavar="ID", default="", help="opt_voice")
@click.option("--style", cls=Option, metavar="TEXT", help="opt_style")
@click.option("--speed", cls=Option, type=float, metavar="0.25..4", help="opt_speed")
@click.option("--seed", cls=Option, type=int, metavar="N", help="opt_seed")
@click.option("--language", "tag", cls=Option, metavar="TAG", help="opt_language")
@click.option("--format", "format_", cls=Option, type=click.Choice(FORMATS), help="opt_format")
@state_option
@json_option
def say(
    words: str,
    output: Path | None,
    play: bool,
    voice: str,
    style: str | None,
    speed: float | None,
    seed: int | None,
    tag: str | None,
    format_: str | None,
    paths: StatePaths,
    as_json: bool,
) -> None:
    """Speak a text: to a file, to the loudspeaker, or as wav into a pipe."""
    if output is not None and str(output) == "-":
        output = None
        to_stdout = True
    else:
        # A terminal cannot show sound, so it is played there.
        to_stdout = output is None and not play and not sys.stdout.isatty()
    play = play or (output is None and not to_stdout)
    if as_json and to_stdout:
        usage("json_needs_place")
    format = choose_format(format_, output)
    if output is not None and not output.absolute().parent.is_dir():
        usage("no_folder", folder=output.absolute().parent)
    player = find_player() if play else None
    if play and player is None:
        usage("no_player")
    fields: dict[str, object] = {"text": read_text(words), "voice": voice, "format": format, "source": "cli"}
    chosen = (("instruct", style), ("speed", speed), ("seed", seed), ("language", tag))
    fields |= {k: v for k, v in chosen if v is not None}

    from daemon.cli.speaking import Sinks, speak

    with Sinks(format if to_stdout else None, player) as sinks:
        spoken = speak(paths, fields, sinks, progress=sys.stderr.isatty())
        if output is not None:
            spoken.write_file(format, output)
    if as_json:
        print_json({**dataclasses.asdict(spoken.result), "output": str(output) if output else None})
    elif output is not None:
        note("said_to", file=output, seconds=spoken.result.seconds)
