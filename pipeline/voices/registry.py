"""Cloned voices: rows of `voices`, and the one clip that each keeps (CONTRACTS 2). Imports no engine.

`<state>/voices/ID/reference.flac` is what the voice is made of; features lie beside it, one file an engine.
A voice is made only with a consent: who agreed, and when it was said.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.audio.files import disk_errors, fsync_folder
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.jobs import VOICE_ID, clean_text, has_words
from pipeline.model_files import ENGINE
from pipeline.paths import StatePaths
from pipeline.store.db import write_transaction
from pipeline.voices.catalogue import CONSENTS, Voice, ready_made

NAME_CHARS, TRANSCRIPT_CHARS = 80, 1000
TAGS_MAX, TAG_CHARS = 12, 30

STARTER_SOURCE = "starter"
"""`voices.source` of the voice that comes with the model."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What was chosen, who agreed (only for `agreed`), and when (UTC text)."""

    choice: str
    at: str
    person: str = ""

    def to_json(self) -> str:
        """The form in `voices.consent`."""
        found = {"choice": self.choice, "at": self.at} | ({"person": self.person} if self.person else {})
        return json.dumps(found, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class NewVoice:
    """What a person says about a voice, checked. `transcript` None: cross-lingual only."""

    name: str
    consent: Consent
    transcript: str | None = None
    language: str | None = None
    owner: str = ""
    source: str = "upload"
    tags: tuple[str, ...] = ()


def one_line(value: object, most: int, field: str) -> str:
    """NFC text on one line, at most `most` characters. Raises CosydError(bad_value)."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CosydError("bad_value", field=field, reason="not_text")
    found = " ".join(unicodedata.normalize("NFC", clean_text(value)).split())
    if len(found) > most:
        raise CosydError("bad_value", field=field, reason="out_of_range", value=len(found), low=1, high=most)
    return found


def parse_name(value: object) -> str:
    """A display name: one line of NFC text with a letter or digit in it. Raises CosydError(bad_value)."""
    found = one_line(value, NAME_CHARS, "name")
    if not has_words(found):
        raise CosydError("bad_value", field="name", reason="not_text")
    return found


def parse_tags(value: object) -> tuple[str, ...]:
    """Words to find a voice by, each once whatever its case, in the order given: a list of texts, or one
    text with commas. Raises CosydError(bad_value)."""
    given = value.replace("，", ",").split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise CosydError("bad_value", field="tags", reason="not_text")
    found: dict[str, str] = {}
    for item in given:
        if not isinstance(item, str):
            raise CosydError("bad_value", field="tags", reason="not_text")
        if tag := one_line(item.replace(",", " "), TAG_CHARS, "tags"):
            found.setdefault(tag.casefold(), tag)
    if len(found) > TAGS_MAX:
        raise CosydError(
            "bad_value", field="tags", reason="out_of_range", value=len(found), low=0, high=TAGS_MAX
        )
    return tuple(found.values())


def parse_new_voice(fields: Mapping[str, Any], now: float, *, source: str = "upload") -> NewVoice:
    """Check name, consent, person, transcript, language. Raises CosydError(bad_value)."""
    name = parse_name(fields.get("name"))
    choice = fields.get("consent")
    if choice not in CONSENTS:
        raise CosydError(
            "bad_value",
            field="consent",
            reason="not_one_of",
            value=str(choice or "")[:80],
            allowed=", ".join(CONSENTS),
        )
    person = one_line(fields.get("person"), NAME_CHARS, "person")
    if choice == "agreed" and not has_words(person):
        raise CosydError("bad_value", field="person", reason="not_text")
    language = one_line(fields.get("language"), 20, "language")
    return NewVoice(
        name=name,
        consent=Consent(str(choice), utc_text(now), person if choice == "agreed" else ""),
        transcript=one_line(fields.get("transcript"), TRANSCRIPT_CHARS, "transcript") or None,
        language=None if language in ("", "auto") else language,
        source=source,
        tags=parse_tags(fields.get("tags") or ()),
    )


def clip_path(paths: StatePaths, voice_id: str) -> Path:
    """The reference clip. Raises CosydError(unknown_voice) for what cannot be an id."""
    return voice_folder(paths, voice_id) / "reference.flac"


def voice_folder(paths: StatePaths, voice_id: str) -> Path:
    """`<state>/voices/ID`. Raises CosydError(unknown_voice) for what cannot be an id."""
    if not VOICE_ID.fullmatch(voice_id):
        raise CosydError("unknown_voice", voice=voice_id[:80], known="", reason="malformed")
    return paths.voices / voice_id


def add_voice(
    conn: sqlite3.Connection,
    paths: StatePaths,
    new: NewVoice,
    audio: npt.NDArray[np.float32],
    rate: int,
    now: float,
) -> Voice:
    """Keep the clip (mono, `rate` samples a second), then the row. Raises CosydError(storage_full | busy).

    The clip is there before the row, so that a voice that is listed can be spoken.
    """
    voice_id = f"v-{secrets.token_hex(6)}"
    folder = voice_folder(paths, voice_id)
    try:
        with disk_errors():
            folder.mkdir(mode=0o700, parents=True)
        digest = write_clip(folder / "reference.flac", audio, rate)
        with write_transaction(conn):
            conn.execute(
                "INSERT INTO voices (id, name, owner, engine, created_at, transcript, language, seconds,"
                " source, content_hash, consent, tags) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    voice_id, new.name, new.owner, ENGINE, utc_text(now), new.transcript, new.language,
                    round(len(audio) / rate, 3), new.source, digest, new.consent.to_json(),
                    _tags_json(new.tags),
                ),
            )  # fmt: skip
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    languages = (new.language,) if new.language else ()
    spoken, starter = new.transcript is not None, new.source == STARTER_SOURCE
    return Voice(voice_id, new.name, ENGINE, languages, new.owner, False, spoken, starter, new.tags)


def _tags_json(tags: tuple[str, ...]) -> str | None:
    return json.dumps(tags, ensure_ascii=False) if tags else None


def _tags(column: str | None) -> tuple[str, ...]:
    """The column as it was written; nothing when it holds something else."""
    try:
        found = json.loads(column or "[]")
    except ValueError:
        return ()
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def write_clip(path: Path, audio: npt.NDArray[np.float32], rate: int) -> str:
    """FLAC of mono samples: written beside, fsync, rename; the SHA-256 of the file. Raises
    CosydError(storage_full)."""
    import soundfile

    part = path.with_name(path.name + ".part")
    with disk_errors():
        soundfile.write(part, np.clip(audio, -1.0, 1.0), rate, "PCM_16", format="FLAC")
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        part.rename(path)
        fsync_folder(path.parent)
    return digest


def cloned_voices(conn: sqlite3.Connection) -> tuple[Voice, ...]:
    """Cloned voices that are not deleted, the oldest first."""
    rows = conn.execute(
        "SELECT id, name, owner, engine, language, transcript IS NOT NULL AS spoken, source, tags FROM voices"
        " WHERE deleted_at IS NULL ORDER BY created_at, id"
    )
    return tuple(
        Voice(
            id=row["id"],
            name=row["name"],
            engine=row["engine"],
            languages=(row["language"],) if row["language"] else (),
            owner=row["owner"] or "",
            builtin=False,
            transcript=bool(row["spoken"]),
            starter=row["source"] == STARTER_SOURCE,
            tags=_tags(row["tags"]),
        )
        for row in rows
    )


def voice_facts(conn: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    """What else a list shows of each cloned voice: `created_at`, `seconds` and `source` of its clip, and
    `consent` (a choice and when it was made)."""
    rows = conn.execute(
        "SELECT id, created_at, seconds, source, consent FROM voices WHERE deleted_at IS NULL"
    ).fetchall()
    found = {}
    for row in rows:
        consent = json.loads(row["consent"] or "{}")
        found[row["id"]] = {
            "created_at": row["created_at"],
            "seconds": row["seconds"],
            "source": row["source"],
            "consent": {name: consent.get(name, "") for name in ("choice", "at", "person")},
        }
    return found


def change_voice(
    conn: sqlite3.Connection, voice_id: str, *, name: object = None, tags: object = None
) -> bool:
    """Give a cloned voice another display name or other tags (None: as they are); its id stays. False when
    there is none. Raises CosydError(bad_value)."""
    shown = None if name is None else parse_name(name)
    words = None if tags is None else parse_tags(tags)
    with write_transaction(conn):
        return bool(
            conn.execute(
                "UPDATE voices SET name = coalesce(?, name), tags = CASE WHEN ? THEN ? ELSE tags END"
                " WHERE id = ? AND deleted_at IS NULL",
                (shown, words is not None, _tags_json(words or ()), voice_id),
            ).rowcount
        )


def all_voices(conn: sqlite3.Connection, extra_engines: Mapping[str, str]) -> tuple[Voice, ...]:
    """Ready-made voices, then the cloned ones."""
    return (*ready_made(extra_engines), *cloned_voices(conn))


def remove_voice(conn: sqlite3.Connection, paths: StatePaths, voice_id: str, now: float) -> bool:
    """Delete a cloned voice with its clip and features; the row stays, emptied of what was said and who.

    False when there is none. Recordings made with it stay.
    """
    folder = voice_folder(paths, voice_id)
    with write_transaction(conn):
        found = conn.execute(
            "UPDATE voices SET deleted_at = ?, name = '', transcript = NULL, content_hash = NULL,"
            " consent = NULL, tags = NULL WHERE id = ? AND deleted_at IS NULL",
            (utc_text(now), voice_id),
        ).rowcount
    if found:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(found)
