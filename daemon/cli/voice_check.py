"""`cosyd voices check`, and what is told of the clip that `cosyd voices add` takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daemon.cli.frame import Command, Option, json_option, language, note, print_json, state_option, text
from daemon.cli.layers import current_config
from pipeline.codes import CosydError
from pipeline.messages import render
from pipeline.paths import StatePaths

if TYPE_CHECKING:
    from pipeline.voices.reference import Report

_SECONDS = click.FloatRange(min=0)


def span_options(command: Any) -> Any:
    """`--from` and `--to`, in seconds."""
    for flag, name, key in (
        ("--to", "span_end", "opt_span_end"),
        ("--from", "span_start", "opt_span_start"),
    ):
        command = click.option(flag, name, cls=Option, type=_SECONDS, metavar="SECONDS", help=key)(command)
    return command


def span_of(start: float | None, end: float | None) -> tuple[float, float] | None:
    """The part that the options name; to the end, or from the start, where one is missing."""
    return None if start is None and end is None else (start or 0.0, float("inf") if end is None else end)


@click.command("check", cls=Command, help_key="help_voices_check", example="cosyd voices check clip.m4a")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--transcript", cls=Option, metavar="TEXT", default="", help="opt_transcript")
@span_options
@state_option
@json_option
def check(
    file: Path,
    transcript: str,
    span_start: float | None,
    span_end: float | None,
    paths: StatePaths,
    as_json: bool,
) -> None:
    """Look at a recording without keeping anything."""
    from pipeline.audio.recording import read_recording
    from pipeline.voices.reference import examine
    from pipeline.voices.verdict import report_view

    report = examine(
        read_recording(file),
        max_seconds=current_config(paths).reference_audio_max_s,
        transcript=transcript.strip() or None,
        span=span_of(span_start, span_end),
    )
    if as_json:
        print_json(report_view(report, language()))
    else:
        _table(report)
    if report.refusal is not None:
        raise CosydError(report.refusal.code, **report.refusal.params)


def _table(report: Report) -> None:
    from daemon.cli.tables import print_table

    print_table(
        ["col_check", "col_verdict", "col_advice"],
        [
            (
                render(f"voice.check_{found.name}", language()),
                render(f"voice.verdict_{found.verdict}", language()),
                found.message(language()),
            )
            for found in report.checks
        ],
    )
    tell_part(report)


def tell_part(report: Report) -> None:
    """Which part is used, and which others there are."""
    if report.refusal is None:
        note("clip_part", start=report.cut.start, end=report.cut.end, seconds=report.seconds)
    others = [cut for cut in report.suggestions if cut != report.cut]
    if others:
        note("clip_other", parts=", ".join(f"{cut.start:.1f}-{cut.end:.1f}" for cut in others))


def tell_advice(report: Report) -> None:
    """What could be better, each on a line."""
    for found in report.checks:
        if found.verdict != "good":
            label = render(f"voice.check_{found.name}", language())
            click.echo(text("clip_check", check=label, message=found.message(language())), err=True)
    if report.shortened:
        tell_part(report)
