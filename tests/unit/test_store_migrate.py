"""The migrate child with real processes: many at once, newer, damaged, full and read-only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store import migrations
from pipeline.store.db import check_schema, connect
from pipeline.store.ensure import ensure_schema, failure_from_output, migrate_command
from pipeline.store.migrate import migrate, os_storage_error
from pipeline.store.schema import SCHEMA_VERSION, VERSIONS
from tests.unit.storekit import NOW, opened, submit


def run_migrate(paths: StatePaths, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(migrate_command(paths), capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


# -- migrate ---------------------------------------------------------------------------------------


def test_eight_migrations_at_once_all_succeed(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    children = [
        subprocess.Popen(migrate_command(paths), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    results = [(*child.communicate(timeout=120), child.returncode) for child in children]
    assert results == [(b"", b"", 0)] * 8
    with closing(connect(paths.database)) as conn:
        check_schema(conn)
        assert conn.execute("SELECT count(*) FROM _sqlite_migrations").fetchone()[0] == SCHEMA_VERSION


def test_ensure_schema_makes_a_private_database(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    ensure_schema(paths)
    with closing(connect(paths.database)) as conn:
        check_schema(conn)
    assert stat.S_IMODE(paths.database.stat().st_mode) == 0o600


def test_as_a_child_of_the_supervisor_it_does_the_same(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    environ = {**os.environ, "COSYD_PARENT_PID": str(os.getpid()), "COSYD_STATE_DIR": str(paths.root)}
    assert run_migrate(paths, env=environ).returncode == 0
    orphan = {**environ, "COSYD_PARENT_PID": str(os.getppid()), "COSYD_STATE_DIR": str(tmp_path / "other")}
    other = StatePaths.at(tmp_path / "other", {})
    assert run_migrate(other, env=orphan).returncode == 75, "a child of nobody changes nothing"
    assert not other.database.exists()


def test_migrating_again_changes_nothing(paths: StatePaths) -> None:
    before = paths.database.read_bytes()
    assert migrate(paths, now=NOW) is False
    assert paths.database.read_bytes() == before
    assert list(paths.backups.iterdir()) == []


def test_an_older_database_is_backed_up_then_upgraded(
    paths: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(paths)) as conn:
        job = submit(conn, "From before.")
    newer = (*VERSIONS, ("ALTER TABLE people ADD COLUMN colour TEXT",))
    monkeypatch.setattr("pipeline.store.migrate.SCHEMA_VERSION", len(newer))
    monkeypatch.setattr(migrations.build, "__defaults__", (newer,))
    monkeypatch.setattr(migrations.apply, "__defaults__", (newer,))
    assert migrate(paths, now=NOW) is True
    with closing(sqlite3.connect(paths.database)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone()[0] == len(newer)
        assert conn.execute("SELECT id FROM jobs").fetchone()[0] == job
        assert "colour" in [row[1] for row in conn.execute("PRAGMA table_info(people)")]
    (saved,) = paths.backups.iterdir()
    assert saved.name == f"before-v{len(newer)}-20260921-141320.db"
    with closing(sqlite3.connect(saved)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone()[0] == len(VERSIONS)
        assert conn.execute("SELECT id FROM jobs").fetchone()[0] == job


def test_a_step_that_fails_leaves_number_and_schema_as_they_were(paths: StatePaths) -> None:
    broken = (*VERSIONS, ("CREATE TABLE half (x)", "CREATE TABLE jobs (x)"))
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as conn:
        with pytest.raises(sqlite3.OperationalError):
            migrations.apply(conn, broken)
        assert conn.execute("PRAGMA user_version").fetchone()[0] == len(VERSIONS)
        assert conn.execute("SELECT count(*) FROM sqlite_master WHERE name='half'").fetchone()[0] == 0


def _fingerprint(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("cosyd.db*")
    }


@pytest.mark.parametrize("in_wal", [False, True], ids=["clean", "number still in the WAL"])
def test_a_newer_database_is_refused_untouched(paths: StatePaths, in_wal: bool) -> None:
    with closing(sqlite3.connect(paths.database, isolation_level=None)) as conn:
        conn.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
        if not in_wal:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = _fingerprint(paths.root)
        if in_wal:
            done = run_migrate(paths)
    if not in_wal:
        before = _fingerprint(paths.root)
        done = run_migrate(paths)
    assert done.returncode == 75
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == {
        "code": "schema_mismatch",
        "params": {"found": SCHEMA_VERSION + 1, "expected": SCHEMA_VERSION},
    }
    assert "Traceback" not in done.stderr and done.stderr.strip()
    if not in_wal:
        assert _fingerprint(paths.root) == before
    with closing(sqlite3.connect(paths.database)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION + 1


def _garbage(file: Path) -> None:
    file.write_bytes(b"this was a database once" * 100)


def _truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def _scrambled(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[100:4096] = os.urandom(3996)
    data[60:64] = (0).to_bytes(4, "big")
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [_garbage, _truncated, _scrambled])
def test_a_damaged_file_is_named_as_such(paths: StatePaths, damage: Callable[[Path], None]) -> None:
    damage(paths.database)
    with pytest.raises(CosydError) as caught:
        ensure_schema(paths)
    assert (caught.value.code, caught.value.params["reason"]) == ("internal", "database_corrupt")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "read_only"),
        (errno.EIO, "io"),
    ],
)
def test_what_the_system_says_of_the_folder_has_a_reason(number: int, reason: str) -> None:
    error = os_storage_error(OSError(number, os.strerror(number)))
    assert (error.code, error.params["reason"]) == ("storage_full", reason)


def test_a_state_folder_that_cannot_be_made_is_storage_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run_migrate(StatePaths.at(tmp_path / "file" / "state", {}))
    assert done.returncode == 75
    assert json.loads(done.stdout)["code"] == "storage_full"
    assert "Traceback" not in done.stderr


def without_override(command: list[str]) -> list[str]:
    """Root may write everywhere; without that capability it is held by the mode like anybody."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", *command]


def test_a_read_only_state_folder_is_storage_full(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o500)
    command = without_override(migrate_command(StatePaths.at(folder, {})))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, json.loads(done.stdout)["params"]["reason"]) == (75, "read_only")
    assert "Traceback" not in done.stderr


def test_a_folder_that_became_read_only_is_storage_full_for_a_writer(paths: StatePaths) -> None:
    script = f"""
from pathlib import Path
from pipeline.codes import CosydError
from pipeline.store.db import connect, write_transaction
try:
    with write_transaction(connect(Path({str(paths.database)!r}))) as conn:
        conn.execute("INSERT INTO settings VALUES ('a', 'b')")
except CosydError as error:
    print(error.code, error.params["reason"])
"""
    paths.database.chmod(0o400)
    paths.root.chmod(0o500)
    try:
        done = subprocess.run(
            without_override([sys.executable, "-c", script]), capture_output=True, text=True, timeout=60
        )
    finally:
        paths.root.chmod(0o700)
    code, reason = done.stdout.split()
    assert code == "storage_full"
    assert reason in ("read_only", "unreachable")  # no -shm can be made: SQLite says "unable to open"


def test_a_disk_that_fills_during_migration_leaves_a_code_and_no_half_schema(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", {})

    def no_room() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    done = run_migrate(paths, preexec_fn=no_room, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 75, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["code"] == "storage_full"
    assert "Traceback" not in done.stderr
    ensure_schema(paths)  # and with room again it works
    with closing(connect(paths.database)) as conn:
        check_schema(conn)


def test_a_migration_that_hangs_elsewhere_is_busy_not_a_wait_for_ever(tmp_path: Path) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    paths.ensure()
    with (paths.root / "migrate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CosydError) as caught:
            migrate(paths, now=NOW, lock_wait_s=0.1)
    assert caught.value.code == "storage_busy"


@pytest.mark.parametrize("stdout", ["", "nonsense", "[]", '{"code": "no_such_code", "params": {}}', "{}"])
def test_a_child_that_died_without_a_word_is_internal(stdout: str) -> None:
    error = failure_from_output(stdout, -9)
    assert (error.code, error.params["reason"]) == ("internal", "migrate_died")


def test_a_backup_that_was_copied_into_place_by_hand_gets_its_log_back(paths: StatePaths) -> None:
    with closing(sqlite3.connect(paths.database)) as conn:
        conn.execute("PRAGMA journal_mode=DELETE")
    assert migrate(paths, now=NOW) is False
    with closing(connect(paths.database)) as conn:
        assert conn.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
