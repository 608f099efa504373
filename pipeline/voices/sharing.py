"""A cloned voice leaves as one file, and comes back as a new voice. Imports no engine.

What comes in is treated as an upload: the clip is decoded, checked and written anew, the name and the words
pass the same checks as those a person types, and without a consent said here and now there is no voice
(`voices.registry`). The features are taken along when they have the shape of features; they save the minute
of learning, and an import without them only learns again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pipeline.audio.files import write_whole
from pipeline.audio.mixdown import RATE
from pipeline.audio.recording import read_recording
from pipeline.audio.speech import find_speech
from pipeline.codes import CosydError
from pipeline.jobs import clean_text
from pipeline.paths import StatePaths
from pipeline.voices.archive import CLIP, LIMITS, Archive, refused, write_archive
from pipeline.voices.catalogue import CONSENTS, Voice
from pipeline.voices.feature_file import (
    MAX_BYTES,
    checked_features,
    features_bytes,
    features_path,
    metadata_hash,
)
from pipeline.voices.reference import F32, MIN_SECONDS, is_silent
from pipeline.voices.registry import add_voice, clip_path, parse_new_voice

log = logging.getLogger(__name__)

SOURCE = "import"
_FACTS = ("name", "transcript", "language", "seconds", "engine", "created_at")
_SLACK_S = 0.05  # a clip is cut at a frame, not at a second


def export_voice(conn: sqlite3.Connection, paths: StatePaths, voice_id: str, out: IO[bytes]) -> str:
    """Write the voice to `out`; returns a name for the file. Raises CosydError: `not_found`, and `bad_audio`
    when the clip was changed on the disk."""
    row = conn.execute("SELECT * FROM voices WHERE id = ? AND deleted_at IS NULL", (voice_id,)).fetchone()
    if row is None:
        raise CosydError("not_found")
    try:
        clip = clip_path(paths, voice_id).read_bytes()
    except OSError:
        raise CosydError("bad_audio", reason="changed") from None
    if len(clip) > LIMITS[CLIP]:
        raise CosydError("bad_audio", reason="changed")
    about = {name: row[name] for name in _FACTS}
    about |= {"tags": json.loads(row["tags"] or "[]"), "consent": json.loads(row["consent"] or "{}")}
    write_archive(out, about, clip, _kept_features(paths, voice_id, row["engine"], row["content_hash"]))
    return file_name(row["name"], voice_id)


def _kept_features(paths: StatePaths, voice_id: str, engine: str, content_hash: str) -> bytes | None:
    """Features of this very clip; None when the voice has not spoken yet."""
    path = features_path(paths, voice_id, engine)
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        data = path.read_bytes()
        checked_features(data)
        return data if metadata_hash(data) == content_hash else None
    except (OSError, ValueError):
        return None


def file_name(name: str, voice_id: str) -> str:
    """`Grandma.cosyd-voice.zip`: letters, digits and marks of any script, so that it is a name everywhere;
    the id where nothing is left."""
    plain = re.sub(r"[^\w-]+", "-", name, flags=re.UNICODE).strip("-_")[:40] or voice_id
    return f"{plain}.cosyd-voice.zip"


def imported_fields(archive: Archive, said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `parse_new_voice`: what the file says of the voice, and of the consent only what was said
    here. `said` may also give another name."""
    fields = {name: archive.about.get(name) for name in ("name", "transcript", "language", "tags")}
    if not isinstance(fields["tags"], list):
        fields["tags"] = []
    fields |= {name: said.get(name) for name in ("consent", "person")}
    if said.get("name"):
        fields["name"] = said["name"]
    return fields


def said_there(about: Mapping[str, Any]) -> dict[str, str]:
    """The consent that a file tells of: `choice`, `person`, `at` (UTC text), each "" where there is none.
    Somebody else's word: shown, never believed."""
    consent = about.get("consent")
    found = consent if isinstance(consent, dict) else {}
    said = {name: found.get(name) for name in ("choice", "person", "at")}
    words = {name: clean_text(value)[:80] if isinstance(value, str) else "" for name, value in said.items()}
    return words if words["choice"] in CONSENTS else dict.fromkeys(words, "")


def import_voice(
    conn: sqlite3.Connection,
    paths: StatePaths,
    archive: Archive,
    said: Mapping[str, Any],
    now: float,
    *,
    max_seconds: float,
) -> Voice:
    """Make a voice of a checked archive. `said`: `consent`, `person` and perhaps `name`. Raises
    CosydError: `bad_value`, `bad_audio`, `storage_full`."""
    new = parse_new_voice(imported_fields(archive, said), now, source=SOURCE)
    arrays = None
    if archive.features is not None:
        try:
            arrays = checked_features(archive.features)
        except ValueError:
            raise refused("features") from None
    voice = add_voice(conn, paths, new, read_clip(archive.clip, max_seconds), RATE, now)
    if arrays is not None:
        row = conn.execute("SELECT content_hash FROM voices WHERE id = ?", (voice.id,)).fetchone()
        try:
            write_whole(
                features_path(paths, voice.id, voice.engine), features_bytes(arrays, row["content_hash"])
            )
        except CosydError as error:
            log.warning("the features of a voice are not kept: %s", error.code)
    return voice


def read_clip(data: bytes, max_seconds: float) -> F32:
    """Mono samples at `RATE` of a FLAC as `add_voice` writes it, decoded like any other sound from elsewhere
    (`audio.recording`). Raises CosydError: `bad_value` (it is no such clip, or longer than `max_seconds`),
    `bad_audio` (silent, short, rate)."""
    if data[:4] != b"fLaC":  # any other sound could be read; this one was never a clip of ours
        raise refused("clip")
    fd = os.memfd_create("clip", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        found = read_recording(Path(f"/proc/self/fd/{fd}"), max_seconds + 1)
    except CosydError as error:
        if error.params.get("reason") == "rate":
            raise
        raise refused("clip") from None
    finally:
        os.close(fd)
    if found.channels != 1 or found.cut_off:
        raise refused("clip")
    if found.seconds > max_seconds + _SLACK_S:
        raise refused("long", limit=max_seconds)
    if found.seconds < MIN_SECONDS - _SLACK_S:
        raise CosydError("bad_audio", reason="short", value=round(found.seconds, 1), limit=MIN_SECONDS)
    if is_silent(find_speech(found.audio, RATE)):
        raise CosydError("bad_audio", reason="silent")
    return found.audio
