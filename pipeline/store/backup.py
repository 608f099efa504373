"""A consistent copy of a live database: SQLite's online backup, checked, fsynced, then renamed into place.

Used before a migration and by the nightly maintenance child.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from pipeline.codes import CosydError
from pipeline.store.db import storage_error


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copy `source` to `target`, which appears only when complete and sound.

    Raises CosydError: `internal(reason=database_corrupt)` when the copy fails its integrity check,
    `storage_full`, `storage_busy`; OSError as it comes.
    """
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            # In one step: in WAL mode that is one snapshot, which holds nobody up. In several, each write of
            # another process would make it begin again, and a busy box would never get its backup.
            source.backup(copy)
            # A file of its own, to be copied elsewhere by people: no -wal beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
            verdict = [row[0] for row in copy.execute("PRAGMA integrity_check(5)")]
        if verdict != ["ok"]:
            raise CosydError("internal", reason="database_corrupt", detail="; ".join(verdict)[:500])
        sync_file(part)
        os.replace(part, target)
        sync_file(target.parent)
    except sqlite3.Error as error:
        _discard(part)
        raise storage_error(error) or error from error
    except BaseException:
        _discard(part)
        raise


def _discard(part: Path) -> None:
    for leftover in (part, part.with_name(part.name + "-wal"), part.with_name(part.name + "-shm")):
        leftover.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """fsync a file or folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
