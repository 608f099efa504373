"""What of the outputs folder may go, and the going: retention by age and size, sweep of orphans.

Called by the maintenance child. The oldest recordings go first. Only the audio goes: the row stays with
`audio_path` NULL, since a row is small, says what the machine did, can be found and spoken again; who wants
the text gone deletes the recording. A job that is queued or running is never touched, nor is anything younger
than a grace period, since files come before their rows.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.clock import utc_text
from pipeline.history import output_file
from pipeline.paths import StatePaths
from pipeline.profile.config import Outputs
from pipeline.store.db import write_transaction

GRACE_S = 3600.0
"""A file younger than this has perhaps only not got its row yet."""

JOB_KEPT_S = 30 * 86400.0
"""Rows of `jobs` that are over go after this; their generation row stays and has the same id."""

BATCH = 200
_MONTH = re.compile(r"\d{4}-\d{2}")
_JOB = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Recording:
    """Audio that a row names: `seq` of the row, when it was finished, its size on disk (0: it is missing)."""

    seq: int
    finished_at: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What retention did: recordings whose audio went, rows whose audio was missing, orphan files and
    folders removed, bytes freed, rows of old jobs removed."""

    expired: int = 0
    missing: int = 0
    orphans: int = 0
    freed_bytes: int = 0
    old_jobs: int = 0


def choose_expired(recordings: Iterable[Recording], outputs: Outputs, now: float) -> list[Recording]:
    """Pure: the recordings whose audio has to go, oldest first; `recordings` come oldest first.

    All that is older than `max_age_s`, then as many of the oldest as it takes to get below `max_bytes`.
    """
    known = [r for r in recordings if r.size > 0]
    # An endless age gives a text before any other.
    oldest_kept = utc_text(now - outputs.max_age_s) if outputs.max_age_s < now else ""
    total = sum(r.size for r in known)
    expired = []
    for r in known:
        if r.finished_at < oldest_kept or total > outputs.max_bytes:
            expired.append(r)
            total -= r.size
        else:
            break
    return expired


def apply_retention(
    conn: sqlite3.Connection, paths: StatePaths, outputs: Outputs, now: float, *, grace_s: float = GRACE_S
) -> Swept:
    """Bring outputs and rows in line and below their limits."""
    recordings = list(_recordings(conn, paths))
    # A row that names nothing: somebody removed the file by hand, or we died between file and row.
    # When nothing at all is there, the disk of the outputs is perhaps not mounted: then nothing is believed.
    disk_is_there = any(r.size for r in recordings)
    missing = [r for r in recordings if r.size == 0 and (disk_is_there or _month_is_there(paths, r.path))]
    _forget_audio(conn, missing)
    expired = choose_expired(recordings, outputs, now)
    freed = 0
    for start in range(0, len(expired), BATCH):
        batch = expired[start : start + BATCH]
        # The row first: it then never names audio that is not there.
        _forget_audio(conn, batch)
        for r in batch:
            if (file := output_file(paths, r.path)) is not None and _unlink(file):
                freed += r.size
    orphans, orphan_bytes = sweep_orphans(conn, paths, now, grace_s)
    return Swept(
        expired=len(expired),
        missing=len(missing),
        orphans=orphans,
        freed_bytes=freed + orphan_bytes,
        old_jobs=_drop_old_jobs(conn, now),
    )


def _recordings(conn: sqlite3.Connection, paths: StatePaths) -> Iterator[Recording]:
    rows = conn.execute(
        "SELECT seq, finished_at, audio_path FROM generations "
        "WHERE audio_path IS NOT NULL ORDER BY finished_at"
    )
    for row in rows:
        file = output_file(paths, row["audio_path"])
        yield Recording(row["seq"], row["finished_at"], row["audio_path"], 0 if file is None else _size(file))


def _month_is_there(paths: StatePaths, audio_path: str) -> bool:
    return Path(paths.root, audio_path).parent.is_dir()


def _size(file: Path) -> int:
    try:
        return max(1, file.stat().st_size)  # an empty file is there, too
    except FileNotFoundError:
        return 0


def _forget_audio(conn: sqlite3.Connection, recordings: list[Recording]) -> None:
    for start in range(0, len(recordings), BATCH):
        with write_transaction(conn):
            conn.executemany(
                "UPDATE generations SET audio_path=NULL WHERE seq=? AND audio_path=?",
                [(r.seq, r.path) for r in recordings[start : start + BATCH]],
            )


def _drop_old_jobs(conn: sqlite3.Connection, now: float) -> int:
    dropped = 0
    while True:
        with write_transaction(conn):
            gone = conn.execute(
                "DELETE FROM jobs WHERE id IN (SELECT j.id FROM jobs j JOIN generations g ON g.job_id=j.id "
                "WHERE j.state IN ('done', 'failed', 'cancelled') AND j.updated_at<? LIMIT ?)",
                (utc_text(now - JOB_KEPT_S), BATCH),
            ).rowcount
        dropped += gone
        if gone < BATCH:
            return dropped


def sweep_orphans(conn: sqlite3.Connection, paths: StatePaths, now: float, grace_s: float) -> tuple[int, int]:
    """Remove what no row stands for: (files and folders removed, bytes).

    Segment folders of finished or unknown jobs, audio that no row names, left-over parts. Names that are not
    ours (no month, no job id) are left alone: a person may have put them there.
    """
    count = freed = 0
    for month in _folders(paths.outputs, _MONTH):
        for entry in list(os.scandir(month)):
            path = Path(entry.path)
            job_id = path.name.split(".")[0]
            if entry.is_symlink() or not _JOB.fullmatch(job_id) or now - _latest(path) < grace_s:
                continue
            if _wanted(conn, paths, path, job_id):
                continue
            size = _bytes_of(path)
            if entry.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif not _unlink(path):
                continue
            count, freed = count + 1, freed + size
        try:
            month.rmdir()  # empty months go
        except OSError:
            pass
    return count, freed


def _wanted(conn: sqlite3.Connection, paths: StatePaths, path: Path, job_id: str) -> bool:
    job = conn.execute("SELECT state FROM jobs WHERE id=?", (job_id,)).fetchone()
    if job is not None and job["state"] in ("queued", "running"):
        return True
    named = conn.execute("SELECT audio_path FROM generations WHERE job_id=?", (job_id,)).fetchone()
    if named is None or named["audio_path"] is None:
        return False
    audio = Path(paths.root, named["audio_path"])
    return audio == path or path in audio.parents


def _folders(parent: Path, name: re.Pattern[str]) -> list[Path]:
    try:
        return sorted(
            Path(e.path)
            for e in os.scandir(parent)
            if name.fullmatch(e.name) and e.is_dir(follow_symlinks=False)
        )
    except FileNotFoundError:
        return []


def _tree(path: Path) -> Iterator[os.stat_result]:
    yield path.lstat()
    if path.is_dir() and not path.is_symlink():
        for inner in path.rglob("*"):
            try:
                yield inner.lstat()
            except FileNotFoundError:
                pass


def _latest(path: Path) -> float:
    try:
        return max(stat.st_mtime for stat in _tree(path))
    except FileNotFoundError:
        return float("inf")


def _bytes_of(path: Path) -> int:
    try:
        return sum(stat.st_size for stat in _tree(path))
    except FileNotFoundError:
        return 0


def _unlink(file: Path) -> bool:
    try:
        file.unlink()
    except OSError:
        return False
    return True
