"""Retention, sweep, backup, checkpoint, thinning: on real files and databases, and as real children."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import history, queue
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.events import Event, Sample, insert_events, insert_samples, recent_events, samples_since
from pipeline.maintenance import TASKS, run_task
from pipeline.paths import StatePaths
from pipeline.profile import Config, to_json
from pipeline.profile.config import Outputs
from pipeline.queue import Outcome
from pipeline.retention import GRACE_S, Recording, Swept, apply_retention, choose_expired
from tests.unit.storekit import NOW, opened, rows, submit

DAY = 86400.0


def aged(path: Path, at: float, content: bytes = b"x") -> Path:
    """A file last changed at wall second `at`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))
    os.utime(path.parent, (at, at))
    return path


def recording(conn: sqlite3.Connection, paths: StatePaths, *, at: float, size: int = 100) -> tuple[str, Path]:
    """A done job with its flac: id and file."""
    job = submit(conn, now=at)
    audio = aged(paths.final_audio(utc_text(at), job), at, b"x" * size)
    name = str(audio.relative_to(paths.root))
    assert queue.end_job(conn, job, Outcome("done", audio_path=name, audio_format="flac"), at)
    return job, audio


# -- what expires, pure ----------------------------------------------------------------------------


def at_age(days: float, size: int = 10) -> Recording:
    return Recording(0, utc_text(NOW - days * DAY), "x", size)


@pytest.mark.parametrize(
    ("outputs", "ages", "gone"),
    [
        (Outputs(), [5, 3, 1], 0),
        (Outputs(max_age_s=2 * DAY), [5, 3, 1], 2),
        (Outputs(max_bytes=30), [5, 3, 1], 0),
        (Outputs(max_bytes=29), [5, 3, 1], 1),
        (Outputs(max_bytes=0), [5, 3, 1], 3),
        (Outputs(max_bytes=20, max_age_s=4 * DAY), [5, 3, 1], 1),
        (Outputs(max_bytes=0), [], 0),
    ],
)
def test_the_oldest_go_until_both_limits_hold(outputs: Outputs, ages: list[float], gone: int) -> None:
    recordings = [at_age(days) for days in ages]
    assert choose_expired(recordings, outputs, NOW) == recordings[:gone]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=30), st.integers(0, 400))
def test_what_stays_fits_and_no_more_goes_than_needed(made: list[tuple[float, int]], max_bytes: int) -> None:
    recordings = [at_age(days, size) for days, size in sorted(made, reverse=True)]
    gone = choose_expired(recordings, Outputs(max_bytes=max_bytes), NOW)
    total = sum(r.size for r in recordings)
    assert total - sum(r.size for r in gone) <= max_bytes
    if gone:
        assert total - sum(r.size for r in gone[:-1]) > max_bytes
    assert gone == [r for r in recordings if r.size][: len(gone)]


# -- rows and files --------------------------------------------------------------------------------


def test_audio_goes_and_its_row_stays(conn: sqlite3.Connection, paths: StatePaths) -> None:
    old, old_file = recording(conn, paths, at=NOW - 9 * DAY)
    new, new_file = recording(conn, paths, at=NOW - 1 * DAY)
    swept = apply_retention(conn, paths, Outputs(max_age_s=5 * DAY), NOW)
    assert swept == Swept(expired=1, freed_bytes=100)
    assert not old_file.exists() and new_file.exists()
    kept = history.get(conn, old)
    assert kept is not None and (kept.audio_path, kept.text) == (None, "Hello there.")
    still = history.get(conn, new)
    assert still is not None and still.audio_path is not None


def test_a_row_whose_file_is_gone_says_so(conn: sqlite3.Connection, paths: StatePaths) -> None:
    job, file = recording(conn, paths, at=NOW - DAY)
    file.unlink()
    assert apply_retention(conn, paths, Outputs(), NOW) == Swept(missing=1)
    row = history.get(conn, job)
    assert row is not None and row.audio_path is None


def test_outputs_that_are_not_mounted_cost_no_row_its_recording(
    conn: sqlite3.Connection, paths: StatePaths, tmp_path: Path
) -> None:
    job, _ = recording(conn, paths, at=NOW - DAY)
    paths.outputs.rename(tmp_path / "elsewhere")
    paths.outputs.mkdir()
    assert apply_retention(conn, paths, Outputs(), NOW) == Swept()
    row = history.get(conn, job)
    assert row is not None and row.audio_path is not None


def test_orphans_go_and_strangers_stay(conn: sqlite3.Connection, paths: StatePaths) -> None:
    month, old = paths.outputs / "2026-01", NOW - 2 * GRACE_S
    orphan = aged(month / "0123456789abcdef.flac", old, b"1234")
    part = aged(month / "0123456789abcdef.flac.part", old, b"12")
    folder = aged(month / "fedcba9876543210" / "0000.pcm", old, b"123")
    young = aged(month / "00000000000000aa.flac", NOW - 10)
    stranger = aged(month / "my favourite.flac", old)
    other = aged(paths.outputs / "notes" / "0123456789abcdef.flac", old)
    swept = apply_retention(conn, paths, Outputs(), NOW)
    assert swept.orphans == 3
    assert swept.freed_bytes >= 9
    assert not orphan.exists() and not part.exists() and not folder.parent.exists()
    assert young.exists() and stranger.exists() and other.exists()


def test_pieces_of_a_finished_job_go_but_its_recording_stays(
    conn: sqlite3.Connection, paths: StatePaths
) -> None:
    at = NOW - 2 * GRACE_S
    job, file = recording(conn, paths, at=at)
    piece = aged(paths.job_dir(utc_text(at), job) / "0000.pcm", at)
    part = aged(paths.job_dir(utc_text(at), job) / "0001.part", at)
    assert apply_retention(conn, paths, Outputs(), NOW).orphans == 1
    assert file.exists() and not piece.exists() and not part.parent.exists()


@pytest.mark.parametrize("running", [False, True])
def test_a_job_that_waits_or_runs_keeps_everything(
    conn: sqlite3.Connection, paths: StatePaths, running: bool
) -> None:
    at = NOW - 30 * DAY
    job = submit(conn, now=at)
    if running:
        assert queue.claim(conn, job, "w", at, 15)
    pieces = [aged(paths.job_dir(utc_text(at), job) / name, at) for name in ("0000.pcm", "0001.part")]
    assert apply_retention(conn, paths, Outputs(max_bytes=0, max_age_s=1), NOW) == Swept()
    assert all(piece.exists() for piece in pieces)


def test_rows_of_jobs_long_over_go_and_their_recordings_stay(
    conn: sqlite3.Connection, paths: StatePaths
) -> None:
    old, _ = recording(conn, paths, at=NOW - 40 * DAY)
    new, _ = recording(conn, paths, at=NOW - 20 * DAY)
    assert apply_retention(conn, paths, Outputs(), NOW).old_jobs == 1
    assert [row["id"] for row in rows(conn, "SELECT id FROM jobs")] == [new]
    assert history.get(conn, old) is not None


def test_a_link_in_the_outputs_is_not_followed(
    conn: sqlite3.Connection, paths: StatePaths, tmp_path: Path
) -> None:
    victim = aged(tmp_path / "precious" / "0000.pcm", NOW - DAY)
    (paths.outputs / "2026-01").mkdir()
    (paths.outputs / "2026-01" / "0123456789abcdef").symlink_to(victim.parent)
    (paths.outputs / "2026-02").symlink_to(victim.parent)
    apply_retention(conn, paths, Outputs(), NOW)
    assert victim.exists()


# -- the other tasks -------------------------------------------------------------------------------


def test_a_backup_opens_and_only_the_newest_stay(conn: sqlite3.Connection, paths: StatePaths) -> None:
    job = submit(conn)
    (paths.backups / "before-v2-20260101-000000.db").write_bytes(b"kept by hand")
    aged(paths.backups / "cosyd-20250101-000000.db.part", NOW - 2 * DAY)
    config = replace(Config(), schedule=replace(Config().schedule, backups_kept=2))
    made = [run_task("backup", paths, config, NOW + i)["file"] for i in range(3)]
    assert sorted(file.name for file in paths.backups.iterdir()) == [
        "before-v2-20260101-000000.db",
        *made[1:],
    ]
    assert made[0] == "cosyd-20260921-141320.db"
    with closing(sqlite3.connect(paths.backups / made[2])) as copy:
        assert copy.execute("SELECT id FROM jobs").fetchall() == [(job,)]
        assert copy.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_backup_is_finished_while_others_write(conn: sqlite3.Connection, paths: StatePaths) -> None:
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO settings VALUES ('a', 'b')")
    with closing(opened(paths, "read")) as reader:
        TASKS["backup"](reader, paths, Config(), NOW)
    conn.execute("COMMIT")
    assert len(list(paths.backups.iterdir())) == 1


def test_a_checkpoint_empties_the_log(conn: sqlite3.Connection, paths: StatePaths) -> None:
    submit(conn)
    wal = paths.database.with_name("cosyd.db-wal")
    assert wal.stat().st_size > 0
    assert run_task("checkpoint", paths, Config(), NOW)["busy"] is False
    # Recording the success is the one write after it.
    assert wal.stat().st_size < 40_000
    assert rows(conn, "SELECT name, last_success_at, last_error FROM maintenance") == [
        {"name": "checkpoint", "last_success_at": utc_text(NOW), "last_error": None}
    ]


def test_old_samples_become_hourly_means_once(conn: sqlite3.Connection, paths: StatePaths) -> None:
    hour = NOW // 3600 * 3600
    old = hour - 10 * DAY
    insert_samples(conn, [Sample(old + 10 * i, 100 + i, gpu_util_ratio=None) for i in range(360)])
    insert_samples(
        conn, [Sample(old + 3600, 7, gpu_util_ratio=0.5), Sample(old + 3610, None, gpu_util_ratio=1.0)]
    )
    insert_samples(conn, [Sample(NOW - 400 * DAY, 1)])
    insert_events(conn, [Event(NOW - 400 * DAY, "started"), Event(NOW - 300 * DAY, "started")])
    recent = [Sample(NOW - DAY + 10 * i, i) for i in range(20)]
    insert_samples(conn, recent)
    for _ in range(2):
        run_task("thin-samples", paths, Config(), NOW)
        found = samples_since(conn, 0)
        assert found[0] == Sample(old, 280)  # the mean 279.5, rounded to even
        assert found[1] == Sample(old + 3600, 7, gpu_util_ratio=0.75)
        assert found[2:] == recent
        assert [event.at for event in recent_events(conn)] == [NOW - 300 * DAY]


def test_a_failure_is_recorded_and_the_last_success_kept(conn: sqlite3.Connection, paths: StatePaths) -> None:
    run_task("backup", paths, Config(), NOW)
    for file in paths.backups.iterdir():
        file.unlink()
    paths.backups.rmdir()
    paths.backups.write_text("in the way")
    with pytest.raises(CosydError) as caught:
        run_task("backup", paths, Config(), NOW + 5)
    assert caught.value.code == "storage_full"
    (row,) = rows(conn, "SELECT * FROM maintenance")
    assert row["last_success_at"] == utc_text(NOW)
    assert json.loads(str(row["last_error"]))["code"] == "storage_full"


def test_every_task_runs_as_a_child_at_the_lowest_priority(
    conn: sqlite3.Connection, paths: StatePaths
) -> None:
    paths.effective_config.write_text(to_json(Config()))
    submit(conn)
    for task in TASKS:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "pipeline.maintenance", task, "--state", str(paths.root)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["task"] == task
    assert {row["name"] for row in rows(conn, "SELECT name FROM maintenance")} == set(TASKS)


def test_priority_is_lowered() -> None:
    script = (
        "import os, psutil; from pipeline.maintenance import lower_priority; lower_priority();"
        "print(os.nice(0), psutil.Process().ionice().ioclass == psutil.IOPRIO_CLASS_IDLE)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["19", "True"]


@pytest.mark.parametrize("broken", ["no database", "newer database", "bad config"])
def test_a_child_that_cannot_work_says_so_without_a_traceback(paths: StatePaths, broken: str) -> None:
    if broken == "no database":
        paths.database.unlink()
    elif broken == "newer database":
        with closing(sqlite3.connect(paths.database)) as conn:
            conn.execute("PRAGMA user_version=99")
    else:
        paths.effective_config.write_text('{"no_such_key": 1}')
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.maintenance", "retention", "--state", str(paths.root)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    expected = ("config_error", 78) if broken == "bad config" else ("schema_mismatch", 75)
    assert (report["code"], done.returncode) == expected
    assert "Traceback" not in done.stderr
