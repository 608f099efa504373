"""Where the sound of `cosyd say` and `cosyd convert` goes: a file, stdout or the loudspeaker."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from daemon.cli.frame import Option, note, print_json, usage
from daemon.cli.player import find_player
from pipeline.codes import CosydError
from pipeline.jobs import FORMATS
from pipeline.paths import StatePaths

F = TypeVar("F", bound=Callable[..., Any])

SUFFIXES = {"wave": "wav", "ogg": "opus", "oga": "opus", "m4a": "aac", "raw": "pcm"}
"""File name endings that people use for our formats."""


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


def outlet_options(command: F) -> F:
    """-o, --play and --format."""
    path = click.Path(dir_okay=False, path_type=Path, allow_dash=True)
    for option in (
        click.option("--format", "format_", cls=Option, type=click.Choice(FORMATS), help="opt_format"),
        click.option("--play", cls=Option, is_flag=True, help="opt_play"),
        click.option("-o", "--output", cls=Option, metavar="FILE", type=path, help="opt_output"),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Outlet:
    """`output` None: stdout when `to_stdout`, else only the player."""

    output: Path | None
    to_stdout: bool
    format: str
    player: tuple[str, ...] | None
    as_json: bool

    @classmethod
    def choose(cls, output: Path | None, play: bool, format_: str | None, as_json: bool) -> Outlet:
        """Raises CosydError(unknown_format), UsageError."""
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
        return cls(output, to_stdout, format, player, as_json)

    def deliver(
        self, paths: StatePaths, fields: Mapping[str, object], source: tuple[Any, int] | None = None
    ) -> None:
        """Speak, and say where it went. Raises what `speaking.speak` raises."""
        from daemon.cli.speaking import Sinks, speak

        fields = {**fields, "format": self.format, "source": "cli"}
        with Sinks(self.format if self.to_stdout else None, self.player) as sinks:
            spoken = speak(paths, fields, sinks, progress=sys.stderr.isatty(), source=source)
            if self.output is not None:
                spoken.write_file(self.format, self.output)
        if fields.get("instruct") and spoken.result.engine == "builtin":
            note("style_left_out", voice=spoken.result.voice)
        if self.as_json:
            file = str(self.output) if self.output else None
            print_json({**dataclasses.asdict(spoken.result), "output": file})
        elif self.output is not None:
            note("said_to", file=self.output, seconds=spoken.result.seconds)
