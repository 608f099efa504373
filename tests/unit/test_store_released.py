"""A database of every released schema comes to today's with nothing lost; none of the schemas was edited."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline import history, queue
from pipeline.paths import StatePaths
from pipeline.store.db import check_schema, connect
from pipeline.store.ensure import ensure_schema
from pipeline.store.foreign import examine_database, expected_objects, objects_of
from pipeline.store.schema import SCHEMA_VERSION

KEPT = Path(__file__).parents[1] / "data/schemas"
RELEASED = range(1, SCHEMA_VERSION + 1)
TABLES = """jobs segments job_work generations events samples voices pronunciations settings api_keys people
    maintenance"""


def rows(database: Path, table: str) -> list[dict[str, object]]:
    """All rows of a table of a database that is only looked at."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as conn:
        conn.row_factory = sqlite3.Row
        return [dict(row) for row in conn.execute(f"SELECT * FROM {table}")]


def test_a_database_is_kept_of_every_schema_and_of_no_other() -> None:
    assert sorted(path.name for path in KEPT.glob("*.db")) == sorted(f"v{n}.db" for n in RELEASED), (
        "run `python -m tests.data.schemas.keep` before a version is appended"
    )


@pytest.mark.parametrize("version", RELEASED)
def test_a_released_schema_was_never_edited(version: int) -> None:
    with closing(sqlite3.connect(f"file:{KEPT}/v{version}.db?mode=ro&immutable=1", uri=True)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone()[0] == version
        assert objects_of(conn) == expected_objects(version)
    assert examine_database(KEPT / f"v{version}.db") == version


@pytest.mark.parametrize("version", RELEASED)
def test_every_released_database_comes_to_todays_schema_with_nothing_lost(
    version: int, tmp_path: Path
) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    paths.ensure()
    kept = KEPT / f"v{version}.db"
    shutil.copyfile(kept, paths.database)
    ensure_schema(paths)  # the real child
    with closing(connect(paths.database)) as conn:
        check_schema(conn)
        assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert conn.execute("PRAGMA foreign_key_check").fetchall() == []
        # What was written is found, by Han and by Latin words, and what waited can be taken up.
        for words in ("天气", "sentence"):
            assert [found.status for found in history.search(conn, words)] == ["done"]
        queue.requeue_running(conn, 1_790_000_100.0)
        (waiting,) = queue.candidates(conn, "builtin", 1_790_000_100.0)
        assert queue.claim(conn, waiting.job_id, "w2", 1_790_000_100.0, 15.0) is not None
        assert [str(row.state) for row in queue.load_segments(conn, waiting.job_id)] == ["done", "pending"]
        for table in TABLES.split():
            before = rows(kept, table)
            assert before, f"{table} is empty in {kept.name}"
            if table in ("jobs", "job_work", "segments"):
                continue  # just taken up
            columns = ", ".join(before[0])
            assert [dict(row) for row in conn.execute(f"SELECT {columns} FROM {table}")] == before
    saved = list(paths.backups.iterdir())
    assert len(saved) == (version < SCHEMA_VERSION)
