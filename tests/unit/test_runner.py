"""The runner in this process: real SQLite, real files, a scripted engine and a fake clock."""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from pipeline import queue
from pipeline.audio.files import SegmentWriter
from pipeline.child import HeartbeatState
from pipeline.clock import FakeClock
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, JobState, Lane
from pipeline.paths import StatePaths, segment_pcm
from pipeline.profile import Config
from pipeline.queue.values import SegmentRow
from pipeline.runner import FULL_TRIES, Runner, WorkerEnds
from pipeline.store.db import connect
from pipeline.store.migrate import migrate
from pipeline.take import Why
from tests.engines.scripted import ScriptedEngine, heard_numbers


def sentences(count: int, extra: str = "") -> str:
    """A text that is cut into `count` segments, which say 1, 2, 3 ..."""
    return " ".join(
        f"Number {i} is spoken here {extra} as a sentence of its own." for i in range(1, count + 1)
    )


class Bed:
    """A state folder, a queue and a runner without its second thread."""

    def __init__(self, root: Path, config: Config | None = None, **options: Any) -> None:
        self.paths = StatePaths.at(root, {})
        self.paths.ensure()
        if not self.paths.database.exists():
            migrate(self.paths, now=0.0)
        self.clock = FakeClock()
        self.config = config or Config()
        self.conn = connect(self.paths.database, "accept")
        self.engine = ScriptedEngine()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.hung: list[Why] = []
        self.runner = Runner(
            name="scripted", owner="test:1", paths=self.paths, config=self.config, clock=self.clock,
            on_hang=self.hung.append, notify=lambda method, **params: self.told.append((method, params)),
            heartbeat=HeartbeatState(), **options,
        )  # fmt: skip
        self.runner.open(self.engine, watch=False)

    def submit(
        self, text: str, *, lane: Lane = Lane.page, client: str = "a", seed: int | None = 7, **fields: Any
    ) -> str:
        self.clock.advance(0.001)
        request = JobRequest(text=text, voice="scripted", source="page", client=client, seed=seed, **fields)
        return queue.submit(
            self.conn, request, engine="scripted", lane=lane, now=self.clock.wall(), config=self.config
        )

    def job(self, job_id: str) -> queue.Job:
        job = queue.get_job(self.conn, job_id)
        assert job is not None
        return job

    def row(self, job_id: str) -> sqlite3.Row:
        row: sqlite3.Row = self.conn.execute("SELECT * FROM generations WHERE id=?", (job_id,)).fetchone()
        return row

    def segments(self, job_id: str) -> list[SegmentRow]:
        return queue.load_segments(self.conn, job_id)

    def folder(self, job_id: str) -> Path:
        return self.paths.job_dir(self.job(job_id).created_at, job_id)

    def heard(self, job_id: str) -> list[int]:
        """The numbers in the finished recording."""
        samples, _ = soundfile.read(self.paths.root / self.row(job_id)["audio_path"], dtype="float32")
        return heard_numbers(samples)

    def close(self) -> None:
        self.runner.close()
        self.conn.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path)
    yield bed
    bed.close()


def after_chunk(bed: Bed, number: int, act: Callable[[], object]) -> None:
    """Do something right after the first chunk of segment `number` was written, once."""
    waiting = [act]
    progress = bed.runner._heartbeat.progress

    def watch() -> None:
        progress()
        if waiting and bed.engine.spoken and bed.engine.spoken[-1][0] == number:
            waiting.pop()()

    bed.runner._heartbeat.progress = watch  # type: ignore[method-assign]


def test_without_work_there_is_nothing_to_do(bed: Bed) -> None:
    assert not bed.runner.turn()


def test_a_job_becomes_one_flac_and_one_row(bed: Bed) -> None:
    job_id = bed.submit(sentences(3))
    bed.clock.advance(2.5)
    assert bed.runner.turn()
    row = dict(bed.row(job_id))
    assert bed.heard(job_id) == [1, 2, 3]
    assert bed.job(job_id).state is JobState.DONE and bed.job(job_id).request is None
    assert not bed.folder(job_id).exists()
    samples, _ = soundfile.read(bed.paths.root / row["audio_path"])
    expected = {
        "status": "done", "text": sentences(3), "language": "en", "mode": "builtin", "voice": "scripted",
        "seed": 7, "speed": 1.0, "engine": "scripted", "model": "scripted-1", "device": "cpu",
        "dtype": "float32", "profile": "cpu", "source": "page", "client": "a", "owner": "",
        "audio_format": "flac", "audio_seconds": len(samples) / 24000, "segments": 3, "retries": 0,
        "stand_in": 0, "degraded": 0, "error_code": None, "error": None,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert row["queue_seconds"] == pytest.approx(2.5) and row["first_audio_seconds"] == pytest.approx(2.5)
    assert row["peak_rss_bytes"] > 1_000_000 and row["peak_vram_bytes"] is None


def test_the_same_seed_gives_the_same_samples_and_another_seed_others(bed: Bed) -> None:
    one, two, other = (bed.submit(sentences(2), seed=seed) for seed in (11, 11, 12))
    while bed.runner.turn():
        pass
    files = [(bed.paths.root / bed.row(job)["audio_path"]).read_bytes() for job in (one, two, other)]
    assert files[0] == files[1] != files[2]


def test_segments_do_not_share_a_seed(bed: Bed) -> None:
    bed.submit(sentences(3), seed=5)
    bed.runner.turn()
    assert len({seed for _, seed in bed.engine.spoken}) == 3


def test_a_higher_lane_goes_first_between_two_segments(bed: Bed) -> None:
    long = bed.submit(sentences(4), lane=Lane.batch)
    after_chunk(bed, 2, lambda: bed.submit("Number 50 is in a hurry to be heard.", lane=Lane.interactive))
    assert bed.runner.turn()
    assert bed.job(long).state is JobState.QUEUED and bed.job(long).attempt == 1
    while bed.runner.turn():
        pass
    assert [number for number, _ in bed.engine.spoken] == [1, 2, 50, 3, 4]
    assert bed.heard(long) == [1, 2, 3, 4] and bed.row(long)["retries"] == 0


def test_a_lower_lane_waits_for_the_whole_job(bed: Bed) -> None:
    bed.submit(sentences(3))
    after_chunk(bed, 1, lambda: bed.submit("Number 50 has time until later.", lane=Lane.batch, client="b"))
    bed.runner.turn()
    assert [number for number, _ in bed.engine.spoken] == [1, 2, 3]


def test_clients_of_a_lane_take_turns_by_segments(bed: Bed) -> None:
    first = bed.submit(sentences(3), client="a")
    second = bed.submit(sentences(3).replace("Number ", "Number 2"), client="b")
    while bed.runner.turn():
        pass
    assert [number for number, _ in bed.engine.spoken] == [1, 21, 2, 22, 3, 23]
    assert bed.heard(first) == [1, 2, 3] and bed.heard(second) == [21, 22, 23]


def test_a_second_job_of_the_same_client_waits(bed: Bed) -> None:
    bed.submit(sentences(3))
    bed.submit("Number 50 comes from the same person.")
    while bed.runner.turn():
        pass
    assert [number for number, _ in bed.engine.spoken] == [1, 2, 3, 50]


def test_a_cancelled_job_stops_in_the_middle_of_a_segment(bed: Bed) -> None:
    job_id = bed.submit(sentences(5))

    def cancel() -> None:
        queue.request_cancel(bed.conn, job_id, bed.clock.wall())
        assert bed.runner.cancel(job_id)

    after_chunk(bed, 2, cancel)
    bed.runner.turn()
    row = bed.row(job_id)
    assert (row["status"], row["error_code"], row["audio_path"]) == ("cancelled", "cancelled", None)
    assert [number for number, _ in bed.engine.spoken] == [1, 2]
    assert not bed.folder(job_id).exists()


def test_a_cancel_wish_without_a_message_is_seen_by_the_attendant(bed: Bed) -> None:
    job_id = bed.submit(sentences(5))

    def wish() -> None:
        queue.request_cancel(bed.conn, job_id, bed.clock.wall())
        bed.clock.advance(1.5)
        bed.runner._attendant.tick()

    after_chunk(bed, 3, wish)
    bed.runner.turn()
    assert bed.row(job_id)["status"] == "cancelled" and len(bed.engine.spoken) == 3


def test_a_cancel_of_another_job_changes_nothing(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))
    after_chunk(bed, 1, lambda: bed.runner.cancel("0" * 16))
    bed.runner.turn()
    assert bed.heard(job_id) == [1, 2]


def test_leaving_gives_the_job_back_between_segments(bed: Bed) -> None:
    job_id = bed.submit(sentences(4))
    after_chunk(bed, 2, bed.runner.leave)
    bed.runner.turn()
    job = bed.job(job_id)
    assert (job.state, job.attempt, job.lease_owner) == (JobState.QUEUED, 1, None)
    assert [s.state.value for s in bed.segments(job_id)] == ["done", "done", "pending", "pending"]


def test_leaving_at_once_gives_up_the_segment_in_hand(bed: Bed) -> None:
    job_id = bed.submit(sentences(4))

    def leave() -> None:
        bed.runner.leave(0.0)
        bed.runner._attendant.tick()

    after_chunk(bed, 2, leave)
    bed.runner.turn()
    assert bed.job(job_id).state is JobState.QUEUED and bed.job(job_id).attempt == 1
    assert [s.state.value for s in bed.segments(job_id)] == ["done", "pending", "pending", "pending"]
    assert [path.name for path in bed.folder(job_id).iterdir()] == ["0000.pcm"]


def test_another_worker_goes_on_where_one_left(tmp_path: Path, bed: Bed) -> None:
    job_id = bed.submit(sentences(4))
    after_chunk(bed, 2, bed.runner.leave)
    bed.runner.turn()
    next_one = Bed(tmp_path)
    next_one.clock.advance(10)
    next_one.runner.turn()
    assert [number for number, _ in next_one.engine.spoken] == [3, 4]
    assert next_one.heard(job_id) == [1, 2, 3, 4]
    next_one.close()


def test_a_lost_lease_stops_the_worker_and_leaves_the_job_alone(bed: Bed) -> None:
    job_id = bed.submit(sentences(3))

    def lose() -> None:
        queue.requeue_owner(bed.conn, "test:1", bed.clock.wall())
        bed.clock.advance(bed.config.lease_s / 3 + 0.1)
        bed.runner._attendant.tick()

    after_chunk(bed, 2, lose)
    bed.runner.turn()
    assert bed.job(job_id).state is JobState.QUEUED and bed.job(job_id).attempt == 2
    assert [number for number, _ in bed.engine.spoken] == [1, 2]
    assert segment_pcm(bed.folder(job_id), 0).exists() and not segment_pcm(bed.folder(job_id), 1).exists()


def test_a_segment_that_was_finished_too_late_is_not_renamed(bed: Bed) -> None:
    """Nobody told the worker that it was taken for dead: it finds out before the file gets its name."""
    job_id = bed.submit(sentences(2))
    after_chunk(bed, 1, lambda: queue.requeue_owner(bed.conn, "test:1", bed.clock.wall()))
    bed.runner.turn()
    assert bed.job(job_id).attempt == 2 and list(bed.folder(job_id).iterdir()) == []


def test_a_file_without_its_row_is_made_again(bed: Bed) -> None:
    """A crash between rename and row."""
    job_id = bed.submit(sentences(3))
    after_chunk(bed, 2, bed.runner.leave)
    bed.runner.turn()
    segment_pcm(bed.folder(job_id), 2).write_bytes(b"\1\0" * 5000)
    bed.runner.leaving.clear()
    bed.runner.turn()
    assert [number for number, _ in bed.engine.spoken] == [1, 2, 3] and bed.heard(job_id) == [1, 2, 3]


def test_a_row_without_its_file_is_made_again(bed: Bed) -> None:
    job_id = bed.submit(sentences(3))
    after_chunk(bed, 2, bed.runner.leave)
    bed.runner.turn()
    segment_pcm(bed.folder(job_id), 0).unlink()
    bed.runner.leaving.clear()
    bed.runner.turn()
    assert bed.heard(job_id) == [1, 2, 3]
    assert bed.row(job_id)["audio_seconds"] == pytest.approx(3 + 2 * 0.35 - 2 * 0.03)


def test_a_leaner_profile_cuts_only_what_was_not_begun(tmp_path: Path, bed: Bed) -> None:
    text = "Number 1 is short enough. Number 2 goes on, and on, and on, for quite a while, until it ends."
    job_id = bed.submit(text)
    after_chunk(bed, 1, bed.runner.leave)
    bed.runner.turn()
    before = bed.segments(job_id)
    assert len(before) == 2
    lean = Bed(tmp_path, Config(longest_segment_s=2.0))
    lean.clock.advance(10)
    after_chunk(lean, 2, lean.runner.leave)
    lean.runner.turn()
    rows = lean.segments(job_id)
    assert len(rows) > 2 and rows[0] == before[0]
    assert " ".join(text[r.start : r.end] for r in rows) == text
    lean.runner.leaving.clear()
    lean.runner.turn()
    assert lean.row(job_id)["status"] == "done" and lean.row(job_id)["segments"] == len(rows)
    lean.close()


def test_a_bad_take_is_made_once_more_with_another_seed(bed: Bed) -> None:
    job_id = bed.submit("Number 3 is flaky at first but then fine.")
    bed.runner.turn()
    (_, first), (_, second) = bed.engine.spoken
    assert first == 7 != second
    assert bed.heard(job_id) == [3] and bed.row(job_id)["retries"] == 1


@pytest.mark.parametrize("trouble", ["poison", "silence"])
def test_two_bad_takes_end_the_job(bed: Bed, trouble: str) -> None:
    job_id = bed.submit(f"Number 3 is {trouble} and nothing else today.")
    bed.runner.turn()
    row = bed.row(job_id)
    assert (row["status"], row["error_code"]) == ("failed", "bad_take")
    assert len(bed.engine.spoken) == 2 and not bed.folder(job_id).exists()


def test_an_engine_error_fails_the_job_without_saying_its_text(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = bed.submit("Number 3 goes boom in the middle of it.")
    with caplog.at_level(logging.DEBUG):
        bed.runner.turn()
    row = bed.row(job_id)
    assert (row["status"], row["error_code"], row["error"]) == ("failed", "internal", "RuntimeError")
    assert "_trouble" in caplog.text and "boom in the middle" not in caplog.text
    good = bed.submit(sentences(1))
    bed.runner.turn()
    assert bed.heard(good) == [1]


def test_an_engine_that_fails_three_jobs_in_a_row_is_restarted(bed: Bed) -> None:
    jobs = [bed.submit("Number 3 goes boom in the middle of it.") for _ in range(3)]
    assert bed.runner.turn() and bed.runner.turn()
    with pytest.raises(WorkerEnds) as ending:
        bed.runner.turn()
    assert ending.value.error.code == "engine_failed"
    assert [bed.row(job)["status"] for job in jobs] == ["failed"] * 3


def test_failures_between_successes_are_forgiven(bed: Bed) -> None:
    for _ in range(4):
        bed.submit("Number 3 goes boom in the middle of it.")
        bed.submit(sentences(1))
    while bed.runner.turn():
        pass
    assert bed.conn.execute("SELECT count(*) FROM generations WHERE status='done'").fetchone()[0] == 4


def test_out_of_memory_is_told_and_the_job_given_back(bed: Bed) -> None:
    job_id = bed.submit("Number 3 needs more memory than there is.")
    with pytest.raises(WorkerEnds) as ending:
        bed.runner.turn()
    assert ending.value.error.code == "out_of_memory"
    ((method, params),) = bed.told
    assert (method, params["resource"], params["job"]) == ("oom", "vram", job_id)
    assert params["footprint"]["rss_bytes"] > 0
    assert bed.job(job_id).state is JobState.QUEUED and bed.job(job_id).attempt == 2
    assert bed.segments(job_id)[0].attempt == 0  # no crash: it cannot become poison


def test_out_of_memory_three_times_fails_the_job(bed: Bed) -> None:
    job_id = bed.submit("Number 3 needs more memory than there is.")
    for _ in range(3):
        with pytest.raises(WorkerEnds):
            bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("failed", "out_of_memory")
    assert not bed.folder(job_id).exists()


def test_c18_a_poisoned_cuda_context_ends_the_worker_at_once_and_the_job_is_not_lost(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))

    def poison() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    after_chunk(bed, 2, poison)
    with pytest.raises(WorkerEnds) as ending:
        bed.runner.turn()
    assert (ending.value.error.code, ending.value.error.params["reason"]) == ("engine_failed", "gpu_context")
    assert bed.job(job_id).state is JobState.RUNNING, "the supervisor gives it back, as after any crash"


def test_a_late_segment_ends_the_job_with_deadline(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))

    def late() -> None:
        bed.clock.advance(10_000)
        bed.runner._attendant.tick()

    after_chunk(bed, 2, late)
    bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("failed", "deadline")
    assert bed.hung == []


def test_a_slow_engine_that_moves_on_is_left_to_speak(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))
    late_s = bed.config.deadlines.segment_base_s + bed.config.deadlines.segment_per_audio_s * 10

    def slow() -> None:
        bed.clock.advance(late_s)
        bed.runner._heartbeat.progress_at += 1.0  # a token was made
        bed.runner._attendant.tick()

    after_chunk(bed, 1, slow)
    bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("done", None)


def test_an_engine_that_stands_still_so_long_is_not(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))
    late_s = bed.config.deadlines.segment_base_s + bed.config.deadlines.segment_per_audio_s * 10

    def still() -> None:
        bed.runner._attendant.tick()  # what was made until here is seen
        bed.clock.advance(late_s)
        bed.runner._attendant.tick()

    after_chunk(bed, 1, still)
    bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("failed", "deadline")


def test_an_engine_deaf_to_the_stop_flag_is_called_hung(bed: Bed) -> None:
    bed.submit(sentences(2))

    def hang() -> None:
        bed.clock.advance(10_000)
        bed.runner._attendant.tick()
        assert bed.hung == []
        bed.clock.advance(bed.config.deadlines.stop_grace_s + 1)
        bed.runner._attendant.tick()

    after_chunk(bed, 2, hang)
    bed.runner.turn()
    assert bed.hung == [Why.DEADLINE]


def test_the_lease_outlives_a_long_segment(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))

    def work_long() -> None:
        for _ in range(10):
            bed.clock.advance(bed.config.lease_s / 3)
            bed.runner._attendant.tick()
            assert queue.expire_leases(bed.conn, bed.clock.wall()) == []

    after_chunk(bed, 1, work_long)
    bed.runner.turn()
    assert bed.heard(job_id) == [1, 2]


def test_text_of_markup_alone_is_empty(bed: Bed) -> None:
    job_id = bed.submit('<speak><break time="1s"/></speak>', markup="ssml")
    bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("failed", "empty_text")


def test_an_unreadable_request_does_not_block_the_queue(bed: Bed) -> None:
    bad, good = bed.submit(sentences(1)), bed.submit(sentences(1))
    bed.conn.execute("UPDATE jobs SET request='{\"v\":9}' WHERE id=?", (bad,))
    assert bed.runner.turn() and bed.runner.turn()
    assert bed.row(bad)["status"] == "failed" and bed.row(good)["status"] == "done"


class FullDisk(SegmentWriter):
    """A writer on a disk that is full from its second chunk on."""

    def append(self, chunk: np.ndarray) -> None:
        if self.samples:
            from pipeline.audio.files import disk_errors

            with disk_errors():
                raise OSError(errno.ENOSPC, "No space left on device")
        super().append(chunk)


def test_a_full_disk_fails_the_job_and_not_the_worker(tmp_path: Path) -> None:
    bed = Bed(tmp_path, open_writer=lambda folder, idx: (FullDisk if idx else SegmentWriter)(folder, idx))
    job_id = bed.submit(sentences(2))
    bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("failed", "storage_full")
    assert not bed.folder(job_id).exists()
    good = bed.submit(sentences(1))
    bed.runner.turn()
    assert bed.row(good)["status"] == "done"
    bed.close()


def test_the_end_of_a_job_is_written_however_long_the_disk_is_full(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose end is given up would be shown as running for as long as its worker lives."""
    monkeypatch.setattr("pipeline.runner.POLL_S", 0.001)
    tries, real = 0, queue.end_job

    def full(*args: Any, **more: Any) -> bool:
        nonlocal tries
        tries += 1
        if tries < 4 * FULL_TRIES:
            raise CosydError("storage_full", reason="disk")
        return real(*args, **more)

    monkeypatch.setattr(queue, "end_job", full)
    job_id = bed.submit(sentences(1))
    bed.runner.turn()
    assert (bed.row(job_id)["status"], bed.row(job_id)["error_code"]) == ("failed", "storage_full")


def test_a_worker_that_has_to_leave_waits_for_no_disk(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runner.POLL_S", 0.001)

    def full(*args: Any, **more: Any) -> bool:
        bed.runner.leave(60.0)
        raise CosydError("storage_full", reason="disk")

    monkeypatch.setattr(queue, "end_job", full)
    job_id = bed.submit(sentences(1))
    bed.runner.turn()
    assert bed.conn.execute("SELECT state FROM jobs WHERE id=?", (job_id,)).fetchone()[0] == "running"


def test_a_locked_database_is_waited_for(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock outlasts many tries; nothing is spoken twice and nothing is lost."""
    bed.runner._opened().conn.execute("PRAGMA busy_timeout=1")
    job_id = bed.submit(sentences(2))
    tries = []
    pause = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if event is bed.runner._pause:
            tries.append(timeout)
            if len(tries) == 20:
                bed.conn.execute("ROLLBACK")
            timeout = 0
        return pause(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", wait)
    after_chunk(bed, 1, lambda: bed.conn.execute("BEGIN IMMEDIATE"))
    bed.runner.turn()
    assert len(tries) >= 20
    assert bed.heard(job_id) == [1, 2] and [n for n, _ in bed.engine.spoken] == [1, 2]


def test_memory_is_given_back_on_request(bed: Bed) -> None:
    job_id = bed.submit(sentences(2))
    wishes = []
    after_chunk(bed, 1, lambda: wishes.append(bed.runner.trim()))
    bed.runner.turn()
    report = wishes[0].result(timeout=0)
    assert set(report) == {"rss_before", "rss_after", "vram_before", "vram_after"}
    assert report["rss_before"] > 0 and report["vram_after"] is None
    assert bed.engine.trims == 1  # between the segments, not in the middle of one
    assert bed.heard(job_id) == [1, 2]


def test_a_runner_for_one_job_leaves_the_others(tmp_path: Path) -> None:
    job_id = "ab" * 8
    bed = Bed(tmp_path, only=job_id)
    bed.submit(sentences(1))
    assert not bed.runner.turn()
    bed.close()


def test_storage_errors_do_not_end_the_loop(bed: Bed) -> None:
    bed.runner._opened().conn.execute("PRAGMA busy_timeout=1")
    bed.submit(sentences(1))
    bed.conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(CosydError, match="storage_busy"):
        bed.runner.turn()
    assert bed.runner._turn_or_wait() is False
    bed.conn.execute("ROLLBACK")
    assert bed.runner._turn_or_wait() is True
