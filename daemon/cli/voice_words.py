"""`cosyd voices transcribe`: what is said in a recording, for the --transcript of `cosyd voices add`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from daemon.cli.frame import Command, Option, json_option, print_json, state_option
from daemon.cli.layers import current_config
from pipeline.paths import StatePaths


@click.command(
    "transcribe", cls=Command, help_key="help_voices_transcribe", example="cosyd voices transcribe clip.wav"
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--language", "tag", cls=Option, metavar="TAG", default="auto", help="opt_language")
@state_option
@json_option
def transcribe(file: Path, tag: str, paths: StatePaths, as_json: bool) -> None:
    """Write down what is said in a recording."""
    from pipeline.audio.mixdown import RATE
    from pipeline.audio.recording import read_recording
    from pipeline.hearing.child import hear_in_child
    from pipeline.hearing.model import require_hearing

    folder = require_hearing(current_config(paths), paths)
    heard = hear_in_child(folder, read_recording(file).audio, RATE, tag)
    if as_json:
        print_json(dataclasses.asdict(heard))
    else:
        click.echo(heard.text)
