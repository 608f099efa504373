"""`cosyd voices`: which voices there are, add one, remove one; and the list itself, for `cosyd say`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import click

from daemon.cli.frame import Group, Option, json_option, language, note, print_json, state_option, text
from daemon.cli.keys import open_database
from daemon.cli.layers import current_config
from daemon.cli.voice_check import check, span_of, span_options, tell_advice
from daemon.cli.voice_files import export, forget, import_, not_added, preview, tag
from daemon.cli.voice_words import transcribe
from pipeline.messages import render
from pipeline.model_files import require_model
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import connect
from pipeline.voices.catalogue import CONSENTS, Voice, has_espeak, ready_made


def all_voices(paths: StatePaths, config: Config) -> list[Voice]:
    """Ready-made voices, the cloned ones where there is a database, and those of the model's spk2info.pt."""
    if not paths.database.exists():
        return list(ready_made(config.engines.extra))
    from pipeline.voices import registry
    from pipeline.voices.saved import saved_voices

    conn = connect(paths.database, "read", busy_s=5.0)
    try:
        return [*registry.all_voices(conn, config.engines.extra), *saved_voices(paths)]
    finally:
        conn.close()


@click.group(cls=Group, help_key="help_voices", example="cosyd voices", invoke_without_command=True)
@state_option
@json_option
@click.pass_context
def voices(ctx: click.Context, paths: StatePaths, as_json: bool) -> None:
    """List the voices."""
    if ctx.invoked_subcommand is not None:
        return
    found = all_voices(paths, current_config(paths))
    if as_json:
        print_json([dataclasses.asdict(voice) for voice in found])
        return
    from daemon.cli.tables import print_table

    columns, tagged = ["col_voice", "col_name", "col_engine", "col_languages"], any(v.tags for v in found)
    print_table(
        [*columns, "col_tags"] if tagged else columns,
        [
            (v.id, v.name, v.engine, " ".join(v.languages), *([", ".join(v.tags)] if tagged else []))
            for v in found
        ],
    )
    if not has_espeak():
        note("voices_no_espeak")


@voices.command(
    "add", help_key="help_voices_add", example='cosyd voices add clip.wav --name "Anna" --consent own'
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", cls=Option, required=True, help="opt_voice_name")
@click.option("--consent", cls=Option, required=True, type=click.Choice(CONSENTS), help="opt_consent")
@click.option("--person", cls=Option, metavar="NAME", default="", help="opt_person")
@click.option("--transcript", cls=Option, metavar="TEXT", default="", help="opt_transcript")
@click.option("--language", "tag", cls=Option, metavar="TAG", default="", help="opt_language")
@span_options
@state_option
@json_option
def add(
    file: Path,
    name: str,
    consent: str,
    person: str,
    transcript: str,
    tag: str,
    span_start: float | None,
    span_end: float | None,
    paths: StatePaths,
    as_json: bool,
) -> None:
    """Add a voice from a recording."""
    from pipeline.voices.reference import read_clip
    from pipeline.voices.registry import add_voice, parse_new_voice
    from pipeline.voices.verdict import report_view

    require_model(paths.root)
    now = time.time()
    fields = {
        "name": name, "consent": consent, "person": person, "transcript": transcript, "language": tag,
    }  # fmt: skip
    new = parse_new_voice(fields, now)
    config = current_config(paths)
    clip = read_clip(
        file,
        max_seconds=config.reference_audio_max_s,
        transcript=new.transcript,
        span=span_of(span_start, span_end),
    )
    with open_database(paths) as conn:
        voice = add_voice(conn, paths, new, clip.audio, clip.rate, now)
    if as_json:
        print_json(dataclasses.asdict(voice) | {"verdict": report_view(clip.report, language())})
    else:
        click.echo(voice.id)
        tell_advice(clip.report)
        note("voice_added", id=voice.id)
    if not voice.transcript:
        note("voice_no_transcript")


@voices.command("remove", help_key="help_voices_remove", example="cosyd voices remove v-1a2b3c4d5e6f")
@click.argument("voice_id", metavar="ID")
@state_option
def remove(voice_id: str, paths: StatePaths) -> None:
    """Delete a voice for good, with its clip."""
    from pipeline.voices.registry import remove_voice

    with open_database(paths) as conn:
        if not remove_voice(conn, paths, voice_id, time.time()):
            not_added(conn, paths, voice_id)
    click.echo(text("voice_removed", id=voice_id), err=True)


@voices.command(
    "rename", help_key="help_voices_rename", example='cosyd voices rename v-1a2b3c4d5e6f "Grandma"'
)
@click.argument("voice_id", metavar="ID")
@click.argument("name", metavar="NAME")
@state_option
def rename(voice_id: str, name: str, paths: StatePaths) -> None:
    """Give a voice another display name; its id stays."""
    from pipeline.voices.registry import change_voice, parse_name

    with open_database(paths) as conn:
        if not change_voice(conn, voice_id, name=parse_name(name)):
            not_added(conn, paths, voice_id)
    note("voice_renamed", id=voice_id)


@voices.command("styles", help_key="help_voices_styles", example="cosyd voices styles")
@json_option
def styles(as_json: bool) -> None:
    """List ready-made styles and dialects."""
    from pipeline.voices.styles import DIALECTS, STYLES

    if as_json:
        print_json({"styles": dict(STYLES), "dialects": dict(DIALECTS)})
        return
    from daemon.cli.tables import print_table

    for column, kind, names in (("col_style", "style", STYLES), ("col_dialect", "dialect", DIALECTS)):
        print_table(
            [column, "col_name"], [(name, render(f"page.{kind}.{name}", language())) for name in names]
        )


for command in (check, transcribe, tag, preview, export, import_, forget):
    voices.add_command(command)
