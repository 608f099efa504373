"""Connections to the one database, and the transaction that every write goes through.

Everyone opens it here: web, worker, supervisor, maintenance. Imports nothing but the standard library and
`pipeline.codes`, since the supervisor's 40 MB hold it (`import sqlite_utils` pulls pandas). The schema is
made elsewhere (`pipeline.store.migrate`); here its version is only checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pipeline.codes import CosydError
from pipeline.store.schema import SCHEMA_VERSION

__all__ = [
    "SCHEMA_VERSION", "Kind", "check_place", "check_schema", "connect", "file_identity", "storage_error",
    "write_transaction",
]  # fmt: skip

Kind = Literal["accept", "work", "telemetry", "read"]

BUSY_S: dict[Kind, float] = {"accept": 30.0, "work": 5.0, "telemetry": 5.0, "read": 0.05}
"""How long each kind waits for a lock. Only accepting a job waits long (CONTRACTS 3)."""

RETRY_AFTER_BUSY_S = 5.0
RETRY_AFTER_FULL_S = 60.0
WAL_KEPT_BYTES = 64 * 1024**2


def storage_error(error: sqlite3.Error) -> CosydError | None:
    """The CosydError that `error` means, or None for one that is a fault of ours.

    `storage_busy` for a lock that was not given in time; `storage_full` with a `reason` of `disk_full`,
    `read_only`, `unreachable` or `io`; `internal` with reason `database_corrupt`. The low byte of SQLite's
    code tells the family (https://www.sqlite.org/rescode.html).
    """
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CosydError("storage_busy", retry_after_s=RETRY_AFTER_BUSY_S)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CosydError("internal", reason="database_corrupt", detail=str(error))
    reasons = {
        sqlite3.SQLITE_FULL: "disk_full",
        sqlite3.SQLITE_READONLY: "read_only",
        sqlite3.SQLITE_PERM: "read_only",
        sqlite3.SQLITE_CANTOPEN: "unreachable",
        sqlite3.SQLITE_IOERR: "io",
    }
    if reason := reasons.get(primary):
        return CosydError("storage_full", retry_after_s=RETRY_AFTER_FULL_S, reason=reason)
    return None


def connect(
    path: Path, kind: Kind = "accept", *, busy_s: float | None = None, any_thread: bool = False
) -> sqlite3.Connection:
    """Open the database at `path`, which must exist: autocommit, rows as sqlite3.Row, one per thread.

    `accept` and `work` write with synchronous=FULL (a job that was promised survives a power cut),
    `telemetry` with NORMAL, `read` is query-only. `busy_s` overrides how long a lock is waited for.
    `any_thread` is for a caller that serialises the use itself. Raises CosydError: `schema_mismatch` when
    there is no database yet, `storage_full(reason)` when it cannot be opened.
    """
    if not path.exists():
        raise CosydError("schema_mismatch", found=0, expected=SCHEMA_VERSION)
    wait_s = BUSY_S[kind] if busy_s is None else busy_s
    conn = None
    try:
        conn = sqlite3.connect(
            path.absolute().as_uri() + "?mode=rw",
            uri=True,
            timeout=wait_s,
            isolation_level=None,
            check_same_thread=not any_thread,
        )
        conn.row_factory = sqlite3.Row
        conn.execute(f"PRAGMA synchronous={'FULL' if kind in ('accept', 'work') else 'NORMAL'}")
        conn.execute("PRAGMA foreign_keys=ON")
        conn.execute("PRAGMA temp_store=MEMORY")
        # Each thread has a connection. SQLite's 2 MB for each fill within some thousand jobs, which looks
        # like a leak (measured: 940 bytes a job and connection).
        conn.execute("PRAGMA cache_size=-64")
        conn.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
        if kind == "read":
            conn.execute("PRAGMA query_only=ON")
    except sqlite3.Error as error:
        if conn is not None:
            conn.close()
        raise storage_error(error) or error from error
    return conn


def file_identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at `path`; None when there is none. An open connection goes on with the file that it
    opened, also when that was deleted or replaced: compare before what must not be lost."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_place(path: Path, opened: tuple[int, int] | None) -> None:
    """Raise CosydError(storage_full) unless the file that was `opened` is still at `path`: `gone`, or
    `replaced` by another. That one is not taken up in flight: the write-ahead log of the old one may lie
    beside it, and SQLite would put the two together."""
    found = file_identity(path)
    if found is not None and found == opened:
        return
    raise CosydError(
        "storage_full",
        retry_after_s=RETRY_AFTER_FULL_S,
        reason="gone" if found is None else "replaced",
        file=path.name,
        folder=str(path.parent),
    )


def check_schema(conn: sqlite3.Connection) -> None:
    """Raise CosydError(schema_mismatch, found, expected) unless the database has exactly our schema."""
    try:
        found = int(conn.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error as error:
        raise storage_error(error) or error from error
    if found != SCHEMA_VERSION:
        raise CosydError("schema_mismatch", found=found, expected=SCHEMA_VERSION)


@contextmanager
def write_transaction(conn: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE .. COMMIT, rolled back on any exception. Not to be nested.

    The write lock is taken at once, so that a transaction never fails half-way for want of it. Raises
    CosydError `storage_busy(retry_after_s)` when the lock was not given in the connection's time,
    `storage_full(reason)` when the disk is full or the folder read-only.
    """
    try:
        conn.execute("BEGIN IMMEDIATE")
        yield conn
        conn.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(conn)
        if (known := storage_error(error)) is not None:
            raise known from error
        raise
    except BaseException:
        _roll_back(conn)
        raise


def _roll_back(conn: sqlite3.Connection) -> None:
    if not conn.in_transaction:  # SQLite itself rolls back on a full disk
        return
    try:
        conn.execute("ROLLBACK")
    except sqlite3.Error:
        pass
