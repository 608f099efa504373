"""Connections, transactions and the migrate child, on real files and with real processes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.backup import copy_database
from pipeline.store.db import check_schema, connect, storage_error, write_transaction
from pipeline.store.ensure import migrate_command
from pipeline.store.schema import SCHEMA_VERSION
from tests.unit.storekit import new_state, opened, submit

# CONTRACTS 2, word by word. `seq` is ours: see pipeline.store.schema.
CONTRACT = {
    "jobs": """id created_at state engine lane source client owner priority request attempt not_before
        deadline_at cancel_requested_at lease_owner lease_token lease_until wait_reason updated_at error_code
        error""",
    "segments": "job_id idx start_char end_char text state seed attempt samples error_code",
    "generations": """seq id job_id created_at finished_at status text language mode voice instruct seed speed
        engine model device dtype profile source client owner audio_path audio_format audio_seconds
        queue_seconds first_audio_seconds synthesis_seconds rtf peak_rss_bytes peak_vram_bytes segments
        retries stand_in degraded error_code error""",
    "events": "id at kind level resource code params ram_available_bytes vram_free_bytes freed_bytes",
    "samples": """at ram_available_bytes swap_used_bytes worker_rss_bytes web_rss_bytes vram_used_bytes
        gpu_util_ratio gpu_temp_c power_w""",
    "voices": """id name owner engine created_at deleted_at transcript language seconds source content_hash
        consent exposed_to tags""",
    "pronunciations": "id pattern replacement kind language",
    "settings": "key value",
    "api_keys": "id name owner hash created_at last_used_at revoked_at",
    "people": "id name role password_hash created_at",
    "maintenance": "name last_success_at last_error",
}


def run_migrate(paths: StatePaths, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(migrate_command(paths), capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("table", CONTRACT)
def test_every_table_has_the_columns_of_the_contract(conn: sqlite3.Connection, table: str) -> None:
    columns = [row["name"] for row in conn.execute(f"PRAGMA table_info({table})")]
    assert columns == CONTRACT[table].split()


def test_a_fresh_database_is_in_wal_mode_with_the_schema_number(conn: sqlite3.Connection) -> None:
    assert conn.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert conn.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
    check_schema(conn)


@pytest.mark.parametrize(
    ("kind", "synchronous", "busy_ms"),
    [("accept", 2, 30_000), ("work", 2, 5_000), ("telemetry", 1, 5_000), ("read", 1, 50)],
)
def test_each_kind_of_connection_has_its_durability_and_patience(
    paths: StatePaths, kind: str, synchronous: int, busy_ms: int
) -> None:
    with closing(connect(paths.database, kind)) as conn:  # type: ignore[arg-type]
        assert conn.execute("PRAGMA synchronous").fetchone()[0] == synchronous
        assert conn.execute("PRAGMA busy_timeout").fetchone()[0] == busy_ms
        assert conn.isolation_level is None


def test_a_read_connection_cannot_write(paths: StatePaths) -> None:
    with closing(connect(paths.database, "read")) as conn, pytest.raises(CosydError) as caught:
        with write_transaction(conn):
            conn.execute("INSERT INTO settings VALUES ('a', 'b')")
    assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "read_only")


def test_connecting_before_there_is_a_database_makes_none(tmp_path: Path) -> None:
    with pytest.raises(CosydError) as caught:
        connect(tmp_path / "cosyd.db")
    assert caught.value.code == "schema_mismatch"
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_odd_characters_opens(tmp_path: Path) -> None:
    paths = new_state(tmp_path / "a?b#c %41 语音")
    with closing(connect(paths.database)) as conn:
        check_schema(conn)


def test_a_locked_database_is_storage_busy_with_a_retry_time(paths: StatePaths) -> None:
    with closing(opened(paths)) as holder, closing(opened(paths, busy_s=0.05)) as other:
        with write_transaction(holder):
            with pytest.raises(CosydError) as caught, write_transaction(other):
                pass
    assert caught.value.code == "storage_busy"
    assert caught.value.retry_after_s is not None


def test_readers_go_on_while_somebody_writes(paths: StatePaths, conn: sqlite3.Connection) -> None:
    with closing(connect(paths.database, "read")) as reader, write_transaction(conn):
        conn.execute("INSERT INTO settings VALUES ('a', 'b')")
        assert reader.execute("SELECT count(*) FROM settings").fetchone()[0] == 0


def test_an_exception_rolls_back_and_leaves_the_connection_usable(conn: sqlite3.Connection) -> None:
    with pytest.raises(ZeroDivisionError), write_transaction(conn):
        conn.execute("INSERT INTO settings VALUES ('a', 'b')")
        raise ZeroDivisionError
    with write_transaction(conn):
        conn.execute("INSERT INTO settings VALUES ('c', 'd')")
    assert [row["key"] for row in conn.execute("SELECT key FROM settings")] == ["c"]


def test_a_full_disk_is_storage_full_and_the_database_stays_sound(paths: StatePaths) -> None:
    """RLIMIT_FSIZE makes the kernel refuse to grow a file, as a full disk does, in a process of its own."""
    script = f"""
import json, resource, signal, sys
from pathlib import Path
from pipeline.codes import CosydError
from pipeline.store.db import connect, write_transaction
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
conn = connect(Path({str(paths.database)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
try:
    for i in range(10_000):
        with write_transaction(conn):
            conn.execute("INSERT INTO settings VALUES (?, ?)", (str(i), "x" * 4000))
except CosydError as error:
    print(json.dumps([error.code, error.params["reason"], i, conn.in_transaction]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    code, reason, count, inside = json.loads(done.stdout)
    assert (code, inside) == ("storage_full", False)
    assert reason in ("disk_full", "io")  # EFBIG reads as an I/O error
    with closing(opened(paths)) as conn:
        assert conn.execute("SELECT count(*) FROM settings").fetchone()[0] == count
        assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_sqlites_own_full_is_disk_full(conn: sqlite3.Connection) -> None:
    conn.execute("PRAGMA max_page_count=1")  # SQLite takes the present size as the smallest
    with pytest.raises(CosydError) as caught:
        for i in range(10_000):
            with write_transaction(conn):
                conn.execute("INSERT INTO settings VALUES (?, ?)", (str(i), "x" * 4000))
    assert (caught.value.code, caught.value.params["reason"]) == ("storage_full", "disk_full")


def test_a_fault_of_ours_is_not_dressed_up_as_storage(conn: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught, write_transaction(conn):
        conn.execute("SELECT * FROM no_such_table")
    assert storage_error(caught.value) is None


# -- backup ----------------------------------------------------------------------------------------


def test_a_copy_taken_while_others_write_is_sound(paths: StatePaths, conn: sqlite3.Connection) -> None:
    submit(conn)
    with closing(opened(paths)) as other:
        with write_transaction(other):
            other.execute("INSERT INTO settings VALUES ('not', 'yet')")
            copy_database(conn, paths.backups / "copy.db")
    assert [file.name for file in paths.backups.iterdir()] == ["copy.db"]
    with closing(sqlite3.connect(paths.backups / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM jobs").fetchone()[0] == 1
        assert copy.execute("SELECT count(*) FROM settings").fetchone()[0] == 0


def test_a_copy_that_fails_leaves_neither_part_nor_file(paths: StatePaths, conn: sqlite3.Connection) -> None:
    submit(conn)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(paths.database.read_bytes())
    rootpage = conn.execute("SELECT rootpage FROM sqlite_master WHERE name='jobs'").fetchone()[0]
    start = (rootpage - 1) * 4096
    data[start : start + 4096] = bytes(4096)
    broken = paths.root / "broken.db"
    broken.write_bytes(bytes(data))
    with closing(sqlite3.connect(broken)) as source, pytest.raises(CosydError) as caught:
        copy_database(source, paths.backups / "copy.db")
    assert caught.value.params["reason"] == "database_corrupt"
    assert list(paths.backups.iterdir()) == []


def test_a_file_that_is_no_database_is_refused_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "cosyd.db"
    path.write_bytes(b"no database at all " * 300)
    with pytest.raises(CosydError) as caught:
        connect(path, "read")
    assert caught.value.params["reason"] == "database_corrupt"
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


# -- what the supervisor can afford ----------------------------------------------------------------


def test_the_supervisors_imports_pull_nothing_heavy() -> None:
    heavy = {"pandas", "numpy", "sqlite_utils", "torch", "gradio", "click", "rich"}
    modules = "pipeline.queue, pipeline.events, pipeline.store.db, pipeline.store.ensure, pipeline.history"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
