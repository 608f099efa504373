"""`cosyd voices tag | preview | export | import | forget`: what is done with a voice that was added."""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from daemon.cli.frame import Command, Option, json_option, note, print_json, state_option, text, usage
from daemon.cli.keys import open_database
from daemon.cli.layers import current_config
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.voices.catalogue import CONSENTS, find_voice

_FILE = click.Path(dir_okay=False, path_type=Path)


def not_added(conn: sqlite3.Connection, paths: StatePaths, voice_id: str) -> NoReturn:
    """Why `voice_id` is no voice that was added: unknown with its neighbours, or ready-made."""
    from pipeline.voices.registry import all_voices
    from pipeline.voices.saved import saved_voices

    known = all_voices(conn, current_config(paths).engines.extra)
    find_voice(voice_id, (*known, *saved_voices(paths)), "")
    raise CosydError("bad_value", field="ID", reason="ready_made")


@click.command(
    "tag", cls=Command, help_key="help_voices_tag", example="cosyd voices tag v-1a2b3c4d5e6f family calm"
)
@click.argument("voice_id", metavar="ID")
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@state_option
def tag(voice_id: str, tags: tuple[str, ...], paths: StatePaths) -> None:
    """Set the tags of a voice."""
    from pipeline.voices.registry import change_voice, parse_tags

    words = parse_tags(tags)
    with open_database(paths) as conn:
        if not change_voice(conn, voice_id, tags=words):
            not_added(conn, paths, voice_id)
    if words:
        note("voice_tagged", id=voice_id, tags=", ".join(words))
    else:
        note("voice_untagged", id=voice_id)


@click.command(
    "preview", cls=Command, help_key="help_voices_preview", example="cosyd voices preview v-1a2b3c4d5e6f"
)
@click.argument("voice_id", metavar="ID")
@click.option("-o", "--output", cls=Option, metavar="FILE", type=_FILE, help="opt_preview_output")
@state_option
def preview(voice_id: str, output: Path | None, paths: StatePaths) -> None:
    """Play the clip of a voice."""
    from pipeline.voices.registry import clip_path, cloned_voices

    with open_database(paths) as conn:
        if all(voice.id != voice_id for voice in cloned_voices(conn)):
            not_added(conn, paths, voice_id)
    clip = clip_path(paths, voice_id)
    if not clip.is_file():
        raise CosydError("bad_audio", reason="changed")
    if output is not None:
        output.write_bytes(clip.read_bytes())
        return
    _play(clip)


def _play(clip: Path) -> None:
    import numpy as np
    import soundfile
    import soxr

    from daemon.cli.player import PlayerSink, find_player
    from pipeline.audio.files import to_int16
    from pipeline.jobs import SAMPLE_RATE

    command = find_player()
    if command is None:
        usage("no_player")
    samples, rate = soundfile.read(clip, dtype="float32")
    pcm = to_int16(np.asarray(soxr.resample(samples, rate, SAMPLE_RATE), np.float32)).tobytes()
    player = PlayerSink(command)
    try:
        player.write(pcm)
        heard = player.finish()
    except BrokenPipeError:
        heard = False
    finally:
        player.close()
    if not heard:
        raise click.ClickException(text("player_failed", program=command[0]))


@click.command(
    "export",
    cls=Command,
    help_key="help_voices_export",
    example="cosyd voices export v-1a2b3c4d5e6f -o anna.zip",
)
@click.argument("voice_id", metavar="ID")
@click.option("-o", "--output", cls=Option, metavar="FILE", type=_FILE, help="opt_export_output")
@state_option
def export(voice_id: str, output: Path | None, paths: StatePaths) -> None:
    """Write a voice into a file."""
    import io

    from pipeline.audio.files import disk_errors
    from pipeline.voices.sharing import export_voice

    made = io.BytesIO()
    with open_database(paths) as conn:
        try:
            name = export_voice(conn, paths, voice_id, made)
        except CosydError as error:
            if error.code != "not_found":
                raise
            not_added(conn, paths, voice_id)
    place = output or Path(name)
    with disk_errors():
        place.write_bytes(made.getvalue())
    click.echo(str(place))
    note("voice_exported", file=place, size=len(made.getvalue()))


@click.command(
    "import",
    cls=Command,
    help_key="help_voices_import",
    example="cosyd voices import anna.zip --consent agreed --person Anna",
)
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--consent", cls=Option, required=True, type=click.Choice(CONSENTS), help="opt_consent")
@click.option("--person", cls=Option, metavar="NAME", default="", help="opt_person")
@click.option("--name", cls=Option, default="", help="opt_archive_name")
@state_option
@json_option
def import_(file: Path, consent: str, person: str, name: str, paths: StatePaths, as_json: bool) -> None:
    """Add a voice from an exported file."""
    from pipeline.voices.archive import read_archive
    from pipeline.voices.sharing import import_voice, said_there

    archive = read_archive(file)
    said = {"consent": consent, "person": person, "name": name}
    limit = current_config(paths).reference_audio_max_s
    with open_database(paths) as conn:
        voice = import_voice(conn, paths, archive, said, time.time(), max_seconds=limit)
    if as_json:
        print_json(dataclasses.asdict(voice))
    else:
        click.echo(voice.id)
        note("voice_imported", id=voice.id, said=_in_words(said_there(archive.about)))


def _in_words(said: Mapping[str, str]) -> str:
    """A consent that an archive tells of."""
    if not said["choice"]:
        return text("consent_unsaid")
    words = text(f"said_{said['choice']}", person=said["person"])
    return f"{words} ({said['at'][:10]})" if said["at"] else words


@click.command(
    "forget",
    cls=Command,
    help_key="help_voices_forget",
    example="cosyd voices forget v-1a2b3c4d5e6f --recordings",
)
@click.argument("voice_id", metavar="ID")
@click.option("--recordings", cls=Option, is_flag=True, help="opt_recordings")
@click.option("--yes", cls=Option, is_flag=True, help="opt_yes")
@state_option
@json_option
def forget(voice_id: str, recordings: bool, yes: bool, paths: StatePaths, as_json: bool) -> None:
    """Forget a person."""
    from pipeline.voices.forget import belongings, forget_person

    with open_database(paths) as conn:
        try:
            there = belongings(conn, paths, voice_id)
        except CosydError as error:
            if error.code != "not_found":
                raise
            not_added(conn, paths, voice_id)
        if not yes:
            shown = there if recordings else dataclasses.replace(there, recordings=0, audio_bytes=0)
            note("forget_what", **_numbers(shown))
            if not recordings and there.recordings:
                note("forget_keeps", recordings=there.recordings)
            if not click.confirm(text("forget_ask"), err=True):
                note("forget_nothing")
                return
        gone = forget_person(conn, paths, voice_id, time.time(), recordings=recordings)
    if as_json:
        print_json(dataclasses.asdict(gone))
        return
    note("forget_done", **_numbers(gone))
    if gone.jobs:
        note("forget_stopped", jobs=gone.jobs)
    if gone.backups:
        days = current_config(paths).schedule.backups_kept
        note("forget_backups", backups=gone.backups, days=days)
    if gone.left:
        note("forget_left", left=gone.left)


def _numbers(found: Any) -> dict[str, Any]:
    names = ", ".join(f"{name} ({id_})" if name else id_ for id_, name in found.voices)
    return {
        "voices": names, "clips": found.clips, "features": found.features,
        "recordings": found.recordings, "size": found.audio_bytes,
    }  # fmt: skip
