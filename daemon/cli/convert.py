"""`cosyd convert`: a recording said again in an added voice."""

from __future__ import annotations

from pathlib import Path

import click

from daemon.cli.frame import Command, Option, json_option, state_option
from daemon.cli.outlet import Outlet, outlet_options
from pipeline.paths import StatePaths


@click.command(
    cls=Command, help_key="help_convert", example="cosyd convert memo.m4a --voice v-1a2b3c4d5e6f -o memo.mp3"
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@outlet_options
@click.option("--voice", cls=Option, metavar="ID", required=True, help="opt_convert_voice")
@click.option("--speed", cls=Option, type=float, metavar="0.25..4", help="opt_speed")
@state_option
@json_option
def convert(
    file: Path,
    output: Path | None,
    play: bool,
    voice: str,
    speed: float | None,
    format_: str | None,
    paths: StatePaths,
    as_json: bool,
) -> None:
    """Say a recording again in another voice."""
    outlet = Outlet.choose(output, play, format_, as_json)
    fields: dict[str, object] = {"text": file.name or "audio", "voice": voice, "mode": "convert"}
    if speed is not None:
        fields["speed"] = speed
    from daemon.cli.speaking import check_fields
    from pipeline.voices.source import read_source

    check_fields(paths, fields)  # a wrong voice is told before a long file is read
    outlet.deliver(paths, fields, read_source(file))
