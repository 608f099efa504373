"""The writer thread: what can never succeed holds up nothing that comes after it."""

from __future__ import annotations

import queue
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.writer import Writer, is_passing
from pipeline.codes import CosydError
from pipeline.events import Event, recent_events
from pipeline.paths import StatePaths
from pipeline.store.db import connect
from pipeline.store.ensure import ensure_schema


def test_an_operation_that_can_never_succeed_holds_up_nothing(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", environ={})
    paths.ensure()
    ensure_schema(paths)
    posted: queue.Queue[Callable[[], None]] = queue.Queue()
    writer = Writer(paths.database, posted.put)
    seen: list[Any] = []

    def bad_row(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO segments (job_id, idx) VALUES ('no such job', 0)")
        conn.execute("INSERT INTO segments (job_id, idx) VALUES ('no such job', 0)")

    writer.do("bad", bad_row, seen.append)
    writer.do("good", lambda conn: conn.execute("SELECT 7").fetchone()[0], seen.append)
    writer.event(Event(at=1_700_000_000.0, kind="started"))
    writer.start()
    posted.get(timeout=10)()
    assert writer.stop(10.0)
    assert seen == [7]
    conn = connect(paths.database, "read")
    assert [event.kind for event in recent_events(conn, 5)] == ["started"]
    conn.close()


def test_a_lock_and_a_full_disk_pass_and_a_bad_row_does_not() -> None:
    assert is_passing(CosydError("storage_busy"))
    assert is_passing(CosydError("storage_full", reason="disk_full"))
    assert not is_passing(CosydError("not_found"))
    assert not is_passing(sqlite3.IntegrityError("UNIQUE constraint failed"))


def test_what_sqlite_cannot_take_is_lost_alone_and_the_thread_lives(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    paths.ensure()
    ensure_schema(paths)
    writer = Writer(paths.database, lambda call: call())
    writer.event(Event(at=1.0, kind="started", level=object()))  # type: ignore[arg-type]
    writer.event(Event(at=2.0, kind="foreign_pressure", params={"name": "\ud800name"}))
    writer.start()
    assert writer.stop(10)
    conn = connect(paths.database, "read")
    rows = [tuple(row) for row in conn.execute("SELECT kind, params FROM events")]
    conn.close()
    assert rows == [("foreign_pressure", '{"name": "?name", "lost_events": 1, "lost_samples": 0}')]
