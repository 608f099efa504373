"""Makes and upgrades the database: `python -m pipeline.store.migrate --state DIR`, a short child.

The one owner of migrations (CONTRACTS 2): three processes that migrated a fresh file at once lost two to
"database is locked", 12 times of 12. A flock makes several of these children wait for each other. Exit 0:
the database has our schema. 75: newer database (`schema_mismatch`), disk full or read-only folder
(`storage_full`), lock not given (`storage_busy`). 70: damaged file. 78: on a network file system. On failure
the last line of stdout is `{"code", "params"}` for the parent, and stderr has a sentence for a person.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from pipeline.child import adopt
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.backup import copy_database
from pipeline.store.db import RETRY_AFTER_FULL_S, storage_error
from pipeline.store.place import refuse_network
from pipeline.store.schema import SCHEMA_VERSION

LOCK_WAIT_S = 120.0
_MAGIC = b"SQLite format 3\x00"
_FULL = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.EROFS: "read_only",
         errno.EACCES: "read_only", errno.EPERM: "read_only"}  # fmt: skip


def os_storage_error(error: OSError) -> CosydError:
    """`storage_full` with the reason that `error` means: disk_full, read_only or io."""
    return CosydError(
        "storage_full",
        retry_after_s=RETRY_AFTER_FULL_S,
        reason=_FULL.get(error.errno or 0, "io"),
        detail=str(error),
    )


def migrate(paths: StatePaths, *, now: float, lock_wait_s: float = LOCK_WAIT_S) -> bool:
    """Bring the database of `paths` to our schema; True when something was done.

    Raises CosydError: `schema_mismatch` (newer, left untouched), `config_error(reason=network_filesystem)`,
    `storage_full`, `storage_busy`, `internal(reason=database_corrupt)`.
    """
    try:
        refuse_network(paths.root)
        paths.ensure()
        with migration_lock(paths, lock_wait_s):
            if paths.restore_journal.exists():  # a restore was killed while it changed places
                from pipeline.backup import moves

                moves.finish(paths)
            return _migrate(paths, now)
    except OSError as error:
        raise os_storage_error(error) from error
    except sqlite3.Error as error:
        raise storage_error(error) or CosydError("internal", reason="database", detail=str(error)) from error


def _migrate(paths: StatePaths, now: float) -> bool:
    # The header first, by plain reading: merely opening a newer database would leave files beside it.
    _refuse_newer(_header_version(paths.database))
    with closing(sqlite3.connect(paths.database, timeout=30.0, isolation_level=None)) as conn:
        found = int(conn.execute("PRAGMA user_version").fetchone()[0])
        _refuse_newer(found)
        if found == SCHEMA_VERSION:
            # A backup that was put here is one file; in that mode a reader would hold up the writers.
            if conn.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                conn.execute("PRAGMA journal_mode=WAL")
            return False
        if found > 0:
            stamp = utc_text(now)[:19].replace("-", "").replace(":", "").replace("T", "-")
            copy_database(conn, paths.backups / f"before-v{SCHEMA_VERSION}-{stamp}.db")
        conn.execute("PRAGMA journal_mode=WAL")
        conn.execute("PRAGMA synchronous=FULL")
        # Only now: a start with nothing to migrate should not pay for pandas.
        from pipeline.store import migrations

        migrations.apply(conn)
    return True


def _header_version(path: Path) -> int:
    """`user_version` as the file itself says it (offset 60), 0 for no file or an empty one.

    Raises CosydError(internal, reason=database_corrupt) when it is no SQLite file.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return 0
    if not header:
        return 0
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise CosydError("internal", reason="database_corrupt", detail="file is not a database")
    return int.from_bytes(header[60:64], "big")


def _refuse_newer(found: int) -> None:
    if found > SCHEMA_VERSION:
        raise CosydError("schema_mismatch", found=found, expected=SCHEMA_VERSION)


def migration_lock(paths: StatePaths, wait_s: float = LOCK_WAIT_S) -> AbstractContextManager[None]:
    """Held by whoever changes which database there is. Raises CosydError(storage_busy)."""
    return locked(paths.root / "migrate.lock", wait_s)


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """A flock on a file that is made for it. Raises CosydError(storage_busy) when it is not given in time."""
    deadline = time.monotonic() + wait_s
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CosydError("storage_busy", retry_after_s=5.0) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def main(argv: list[str] | None = None) -> int:
    """Entry of the child."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.store.migrate", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="the state folder")
    options = parser.parse_args(argv)
    os.umask(0o077)  # the database holds what people said
    try:
        if "COSYD_PARENT_PID" in os.environ:
            adopt()
        migrate(StatePaths.at(options.state), now=time.time())
    except CosydError as error:
        report_failure(error, options.state)
        return error.info.exit_status
    return 0


def report_failure(error: CosydError, state: Path) -> None:
    """`{"code", "params"}` on stdout for the parent, one sentence on stderr for a person."""
    from pipeline.messages import error_text, terminal_language

    print(json.dumps({"code": error.code, "params": error.params}, default=str), flush=True)
    text = error_text(error.code, terminal_language(), error.params)
    print(f"{state}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
