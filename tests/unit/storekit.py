"""A real database for tests of the store: made once by the migrations, copied for each test."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from pipeline import queue
from pipeline.jobs import JobRequest, JobState, Lane
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.queue import Planned
from pipeline.store.db import Kind, connect
from pipeline.store.migrate import migrate

NOW = 1_790_000_000.0
CONFIG = Config()
LEASE_S = CONFIG.lease_s


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


def claim(conn: sqlite3.Connection, job: str, owner: str = "w1", now: float = NOW) -> str:
    """Claim the job for `owner` and return the token."""
    claimed = queue.claim(conn, job, owner, now, LEASE_S)
    assert claimed is not None
    return claimed.token


def planned(conn: sqlite3.Connection, job: str, token: str, count: int = 3) -> None:
    """Plan `count` segments of a claimed job."""
    pieces = [Planned(i, f"piece {i}", 10 * i, 10 * i + 7) for i in range(count)]
    assert queue.plan_segments(conn, job, token, pieces, seed=100)


def state_of(conn: sqlite3.Connection, job: str) -> JobState:
    """The state of a job that exists."""
    found = queue.get_job(conn, job)
    assert found is not None
    return found.state
