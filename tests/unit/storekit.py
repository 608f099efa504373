"""A real database for tests of the store: made once by the migrations, copied for each test."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from pipeline import queue
from pipeline.jobs import JobRequest, Lane
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import Kind, connect
from pipeline.store.migrate import migrate

NOW = 1_790_000_000.0


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        paths = StatePaths.at(Path(folder), {})
        migrate(paths, now=NOW)
        with closing(sqlite3.connect(paths.database)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return paths.database.read_bytes()


def new_state(root: Path) -> StatePaths:
    """A state folder with a fresh database, in WAL mode (the header says so)."""
    paths = StatePaths.at(root, {})
    paths.ensure()
    paths.database.write_bytes(_template())
    return paths


def opened(paths: StatePaths, kind: Kind = "accept", busy_s: float | None = None) -> sqlite3.Connection:
    """A connection; close it."""
    return connect(paths.database, kind, busy_s=busy_s)


def submit(
    conn: sqlite3.Connection,
    text: str = "Hello there.",
    *,
    now: float = NOW,
    lane: Lane = Lane.page,
    client: str = "",
    engine: str = "builtin",
    config: Config | None = None,
    **more: object,
) -> str:
    """Queue a text as most tests need it."""
    request = JobRequest(text=text, voice="heart", source="page", client=client)
    return queue.submit(
        conn, request, engine=engine, lane=lane, now=now, config=config or Config(), free_bytes=2**40, **more
    )  # type: ignore[arg-type]


def rows(conn: sqlite3.Connection, sql: str, *params: object) -> list[dict[str, object]]:
    """Rows as plain dicts."""
    return [dict(row) for row in conn.execute(sql, params)]


def copy_state(paths: StatePaths, root: Path) -> StatePaths:
    """A second folder with the same database file."""
    other = StatePaths.at(root, {})
    other.ensure()
    shutil.copy(paths.database, other.database)
    return other
