"""Writes a backup while cosyd runs: one snapshot of the database, then the files that its rows name.

Nobody is held up: the snapshot is SQLite's own, and files of voices and recordings never change once they are
there. A voice that is deleted meanwhile is taken out of the copy too. The file is written beside, read back
and compared, and only then gets its name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.archives import BLOCK_BYTES, check_listed, copy_member, member, opened, read_member
from pipeline.audio.files import disk_errors, fsync_folder
from pipeline.backup.form import (
    CONFIG,
    DATABASE,
    MANIFEST,
    RULES,
    About,
    read_about,
    refused,
    write_manifest,
)
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.backup import copy_database
from pipeline.store.db import SCHEMA_VERSION, connect, storage_error
from pipeline.voices.feature_file import MAX_BYTES, checked_features
from pipeline.voices.registry import clip_path, voice_folder

_MARGIN_BYTES = 4 * 1024**2
"""For what SQLite makes beside a database; without room for it the trouble has other names."""


@dataclass(frozen=True, slots=True)
class Made:
    """What is in a backup: numbers of voices, of recordings and of those with their sound; `missing` had none
    any more."""

    file: str
    bytes: int
    voices: int
    recordings: int
    outputs: int
    missing: int


def file_name(now: float) -> str:
    """`cosyd-20260131-080910.zip`, by UTC."""
    return f"cosyd-{stamp(now)}.zip"


def stamp(now: float) -> str:
    """A time as part of a file's name."""
    return utc_text(now)[:19].replace("-", "").replace(":", "").replace("T", "-")


def write_backup(
    paths: StatePaths,
    target: Path,
    *,
    config: Path | None,
    outputs: bool,
    profile: str,
    version: str,
    now: float,
) -> Made:
    """Write the backup to `target`, which appears only when it is whole and was read back. `config` is the
    configuration file to take along. Raises CosydError: `not_found` (no database), `schema_mismatch` (a newer
    one), `storage_full`, `storage_busy`, `internal`; OSError as it comes."""
    if not paths.database.exists():
        raise CosydError("not_found", reason="state", folder=str(paths.root))
    part = target.with_name(target.name + ".part")
    try:
        with disk_errors(), _snapshot(paths) as copy:
            about = About(utc_text(now), version, _schema(copy), profile, outputs)
            made = _write(paths, part, copy, config, about)
            verify(part)
            os.replace(part, target)
            with suppress(OSError):  # shares and sticks sync no folders; the file itself is on the disk
                fsync_folder(target.parent)
    except sqlite3.Error as error:
        raise storage_error(error) or error from error
    finally:
        part.unlink(missing_ok=True)
    return Made(str(target), target.stat().st_size, *made)


@contextmanager
def _snapshot(paths: StatePaths) -> Iterator[Path]:
    """A copy of the database in a folder of its own, gone at the end."""
    base = paths.tmp if paths.tmp.is_dir() else paths.root
    free = shutil.disk_usage(base).free
    wal = paths.database.with_name(paths.database.name + "-wal")
    needed = paths.database.stat().st_size + _MARGIN_BYTES + (wal.stat().st_size if wal.exists() else 0)
    if free < needed:
        raise CosydError("storage_full", reason="no_room", needed=needed, free=free, folder=str(base))
    folder = Path(tempfile.mkdtemp(prefix="backup-", dir=base))
    try:
        with closing(connect(paths.database, "work")) as conn:
            found = int(conn.execute("PRAGMA user_version").fetchone()[0])
            if found > SCHEMA_VERSION:
                raise CosydError("schema_mismatch", found=found, expected=SCHEMA_VERSION)
            copy_database(conn, folder / DATABASE)
        yield folder / DATABASE
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _schema(copy: Path) -> int:
    with closing(sqlite3.connect(copy)) as conn:
        return int(conn.execute("PRAGMA user_version").fetchone()[0])


def _write(
    paths: StatePaths, part: Path, copy: Path, config: Path | None, about: About
) -> tuple[int, int, int, int]:
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as out, closing(sqlite3.connect(copy, isolation_level=None)) as conn:
        with suppress(PermissionError):  # a stick knows no modes; else also where a file of another was left
            os.fchmod(out.fileno(), 0o600)
        with zipfile.ZipFile(out, "w") as made:
            writing = _Writing(made)
            voices = _voices(paths, conn, writing)
            recordings = int(conn.execute("SELECT count(*) FROM generations").fetchone()[0])
            sound = _wanted_sound(conn) if about.outputs else []
            waiting = [f"outputs/{at[:7]}/{job}/source.flac" for at, job in conn.execute(
                "SELECT created_at, id FROM jobs WHERE state IN ('queued', 'running')")]  # fmt: skip
            conn.close()
            writing.file(DATABASE, copy, zipfile.ZIP_DEFLATED)
            if config is not None:
                writing.file(CONFIG, config)
            there = sum([writing.file(name, paths.root / name, missing_ok=True) for name in sound])
            for name in waiting:
                writing.file(name, paths.root / name, missing_ok=True)
            made.writestr(member(MANIFEST, zipfile.ZIP_DEFLATED), write_manifest(about, writing.files))
        out.flush()
        os.fsync(out.fileno())
    return voices, recordings, there, len(sound) - there


@dataclass
class _Writing:
    """A zip that is being written, and what is in it so far."""

    zip: zipfile.ZipFile
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def file(
        self, name: str, source: Path, method: int = zipfile.ZIP_STORED, *, missing_ok: bool = False
    ) -> bool:
        """Add a file; False when it is not there, and may be missing. Raises OSError."""
        try:
            file = source.open("rb")
        except FileNotFoundError:
            if missing_ok:
                return False
            raise
        digest, size = hashlib.sha256(), 0
        info = member(name, method)
        with file:
            info.file_size = os.fstat(file.fileno()).st_size
            with self.zip.open(info, "w", force_zip64=info.file_size >= 2**31) as out:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
                    size += len(block)
                    out.write(block)
        self.files[name] = {"bytes": size, "sha256": digest.hexdigest()}
        return True


def _voices(paths: StatePaths, conn: sqlite3.Connection, writing: _Writing) -> int:
    """Clips and features of the voices in the copy; a voice that was deleted meanwhile leaves the copy."""
    count = 0
    for (voice_id,) in conn.execute("SELECT id FROM voices WHERE deleted_at IS NULL").fetchall():
        base = f"voices/{voice_id}"
        if not writing.file(f"{base}/reference.flac", clip_path(paths, voice_id), missing_ok=True):
            if not _is_there(paths, voice_id):
                conn.execute("PRAGMA secure_delete=ON")
                conn.execute("DELETE FROM voices WHERE id = ?", (voice_id,))
            continue
        count += 1
        for features in sorted(voice_folder(paths, voice_id).glob("features-*.safetensors")):
            if _good(features):
                writing.file(f"{base}/{features.name}", features, missing_ok=True)
    return count


def _is_there(paths: StatePaths, voice_id: str) -> bool:
    """Is the voice still in the live database?"""
    with closing(connect(paths.database, "read", busy_s=5.0)) as live:
        query = "SELECT 1 FROM voices WHERE id = ? AND deleted_at IS NULL"
        return live.execute(query, (voice_id,)).fetchone() is not None


def _good(features: Path) -> bool:
    """Are these features that a worker would take? Others are learned anew."""
    try:
        if features.stat().st_size > MAX_BYTES:
            return False
        checked_features(features.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _wanted_sound(conn: sqlite3.Connection) -> list[str]:
    """The recordings that rows name, in our own form of names only."""
    query = "SELECT audio_path FROM generations WHERE audio_path IS NOT NULL ORDER BY seq"
    names = [str(row[0]) for row in conn.execute(query)]
    return [name for name in names if RULES.limit(name) is not None]


def verify(path: Path) -> None:
    """Read a backup back and compare every file with its checksum. Raises CosydError(bad_value)."""
    with opened(path, RULES) as made:
        infos = {info.filename: info for info in made.infolist()}
        _, listed = read_about(read_member(made, infos.pop(MANIFEST), RULES))
        files = check_listed(listed, set(infos), RULES)
        for name, info in infos.items():
            if copy_member(made, info, None, RULES) != files[name]["sha256"]:
                raise refused("hash", value=name)
