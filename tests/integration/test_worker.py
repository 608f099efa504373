"""Real worker processes over a real link: what they say, what they survive, and that they leave nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import soundfile

from pipeline import queue
from pipeline.jobs import Lane
from pipeline.profile import Layer, resolve
from tests.engines.scripted import heard_numbers
from tests.integration.harness_worker import House, WorkerProcess, eventually, is_gone

Start = Callable[..., WorkerProcess]


def sentences(count: int, extra: str = "", only: int | None = None) -> str:
    """`count` segments; `extra` goes into each, or into number `only`."""
    return " ".join(
        f"Number {i} is spoken {extra if only in (None, i) else ''} here as a sentence."
        for i in range(1, count + 1)
    )


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    layer = Layer(
        "test",
        {
            "engines.extra": {"scripted": "tests.engines.scripted:ScriptedEngine"},
            "lease_s": 2.0,
            "heartbeat_s": 0.1,
            "deadlines.stop_grace_s": 1.0,
        },
    )
    house = House(tmp_path, resolve([layer]).config)
    yield house
    house.close()


@pytest.fixture
def start(house: House) -> Iterator[Start]:
    """Starts workers; none outlives the test."""
    started: list[WorkerProcess] = []

    def begin(**environ: str) -> WorkerProcess:
        started.append(WorkerProcess(house, **environ))
        return started[-1]

    yield begin
    for worker in started:
        worker.close()


def recording(house: House, job_id: str) -> list[int]:
    samples, rate = soundfile.read(house.paths.root / house.row(job_id)["audio_path"], dtype="float32")
    assert rate == 24000
    return heard_numbers(samples)


def test_a_worker_introduces_itself_speaks_and_goes_when_told(house: House, start: Start) -> None:
    job_id = house.submit(sentences(2))
    worker = start()
    hello = worker.wait_for("hello")
    assert hello == {"role": "worker", "engine": "scripted", "pid": worker.pid, "schema": hello["schema"]}
    ready = worker.wait_for("ready")
    assert ready["capabilities"]["model"] == "scripted-1"
    assert ready["footprint"] == {"rss_bytes": 1_000_000, "vram_bytes": None}
    house.wait_state(job_id, "done")
    assert recording(house, job_id) == [1, 2]
    worker.send("drain", deadline_s=5, reason="test")
    worker.wait_for("drained")
    assert worker.wait() == 0


def test_heartbeats_tell_the_segment_and_its_progress(house: House, start: Start) -> None:
    worker = start()
    job_id = house.submit("Number 4 has to wait for the gate.")
    worker.send("work_available")
    house.wait_in_segment(job_id, 0)
    before = len(worker.heard("heartbeat"))
    eventually(lambda: len(worker.heard("heartbeat")) >= before + 3, "heartbeats while the engine works")
    *_, last = worker.heard("heartbeat")
    assert (last["job"], last["segment"]) == (job_id, 0) and last["rss_bytes"] > 1_000_000
    assert 0 < time.monotonic() - last["progress_at"] < 60  # the machine's monotonic clock
    house.open_gate()
    house.wait_state(job_id, "done")
    eventually(lambda: worker.heard("heartbeat")[-1]["job"] is None, "an idle heartbeat")


def test_kill_9_in_a_segment_and_the_next_worker_goes_on(house: House, start: Start) -> None:
    job_id = house.submit(sentences(10, extra="wait", only=5))
    first = start()
    house.wait_in_segment(job_id, 4)
    first.kill()
    house.wait_state(job_id, "queued")
    assert house.segment_states(job_id) == ["done"] * 4 + ["pending"] * 6
    finished = {path: path.stat().st_mtime_ns for path in house.folder(job_id).glob("*.pcm")}
    second = start()
    eventually(lambda: [b for b in second.heard("heartbeat") if b["segment"] == 4], "it goes on there")
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    house.open_gate()
    house.wait_state(job_id, "done")
    assert recording(house, job_id) == list(range(1, 11))
    assert house.conn.execute("SELECT count(*) FROM generations").fetchone()[0] == 1
    assert house.row(job_id)["retries"] == 1
    eventually(lambda: not house.folder(job_id).exists(), "its segment files are gone")


def test_a_text_that_kills_two_workers_is_poison(house: House, start: Start) -> None:
    job_id = house.submit(sentences(3, extra="crash", only=2))
    for _ in range(2):
        worker = start()
        worker.wait()
        requeued = queue.requeue_owner(house.conn, worker.owner, time.time())
    assert requeued[0].poison
    assert (house.row(job_id)["status"], house.row(job_id)["error_code"]) == ("failed", "worker_died")


def test_a_cancelled_job_stops_in_its_segment(house: House, start: Start) -> None:
    worker = start()
    worker.wait_for("ready")
    job_id = house.submit(sentences(3, extra="wait", only=2))
    worker.send("work_available")
    house.wait_in_segment(job_id, 1)
    queue.request_cancel(house.conn, job_id, time.time())
    worker.send("cancel", job=job_id)
    house.wait_state(job_id, "cancelled", limit_s=1.0)
    assert house.row(job_id)["status"] == "cancelled"
    eventually(lambda: not house.folder(job_id).exists(), "its files are gone")
    after = house.submit(sentences(1))
    worker.send("work_available")
    house.wait_state(after, "done")


def test_a_cancel_without_a_message_is_heard_too(house: House, start: Start) -> None:
    job_id = house.submit(sentences(1, extra="wait"))
    start()
    house.wait_in_segment(job_id, 0)
    queue.request_cancel(house.conn, job_id, time.time())
    house.wait_state(job_id, "cancelled", limit_s=5.0)


def test_a_drain_gives_the_job_back_after_its_deadline(house: House, start: Start) -> None:
    job_id = house.submit(sentences(3, extra="wait", only=2))
    worker = start()
    house.wait_in_segment(job_id, 1)
    worker.send("drain", deadline_s=0.2, reason="memory")
    worker.wait_for("drained")
    assert worker.wait() == 0
    job = queue.get_job(house.conn, job_id)
    assert job is not None and (str(job.state), job.attempt) == ("queued", 1)
    assert house.segment_states(job_id) == ["done", "pending", "pending"]


def test_a_drain_without_a_deadline_finishes_the_segment(house: House, start: Start) -> None:
    job_id = house.submit(sentences(3, extra="wait", only=2))
    worker = start()
    house.wait_in_segment(job_id, 1)
    worker.send("drain", deadline_s=None, reason="memory")
    answer = worker.call("cancel", job="0" * 16)  # the drain was read before this
    assert answer["result"] is False
    house.open_gate()
    assert worker.wait() == 0
    assert house.segment_states(job_id) == ["done", "done", "pending"]


@pytest.mark.parametrize("how", ["shutdown", "SIGTERM"])
def test_a_shutdown_is_quick_and_gives_the_job_back(house: House, start: Start, how: str) -> None:
    job_id = house.submit(sentences(2, extra="wait"))
    worker = start()
    house.wait_in_segment(job_id, 0)
    if how == "SIGTERM":
        worker.popen.terminate()
    else:
        worker.send("shutdown", grace_s=10)
    assert worker.wait(3.0) == 0
    job = queue.get_job(house.conn, job_id)
    assert job is not None and (str(job.state), job.attempt) == ("queued", 1)


def test_without_its_supervisor_a_worker_and_its_child_are_gone_within_a_second(
    house: House, start: Start
) -> None:
    house.submit(sentences(1, extra="grandchild"))
    worker = start()
    note = house.paths.root / "grandchild"
    eventually(lambda: note.exists() and note.read_text(), "the engine started a program")
    grandchild = int(note.read_text())
    assert not is_gone(grandchild)
    worker.sock.shutdown(2)
    eventually(lambda: is_gone(worker.pid) and is_gone(grandchild), "both are gone", limit_s=1.0)


def test_a_hung_engine_ends_its_worker(house: House, start: Start) -> None:
    job_id = house.submit(sentences(2, extra="hang", only=2))
    worker = start()
    house.wait_in_segment(job_id, 1)
    queue.request_cancel(house.conn, job_id, time.time())
    worker.send("cancel", job=job_id)
    assert worker.wait_for("fatal") == {
        "code": "deadline",
        "params": {"engine": "scripted", "reason": "engine_hung"},
    }
    assert worker.wait() == -9
    queue.requeue_owner(house.conn, worker.owner, time.time())
    assert house.row(job_id)["status"] == "cancelled"


def test_the_lease_outlives_a_segment_that_takes_longer(house: House, start: Start) -> None:
    job_id = house.submit(sentences(1, extra="wait"))
    start()
    house.wait_in_segment(job_id, 0)
    first = house.conn.execute("SELECT lease_until FROM jobs").fetchone()[0]
    eventually(
        lambda: house.conn.execute("SELECT lease_until FROM jobs").fetchone()[0] > first,
        "the lease is renewed",
    )
    house.open_gate()
    house.wait_state(job_id, "done")


def test_a_hurried_job_goes_between_two_segments(house: House, start: Start) -> None:
    long = house.submit(sentences(4, extra="wait", only=2), lane=Lane.batch)
    worker = start()
    house.wait_in_segment(long, 1)
    short = house.submit("Number 50 is in a hurry to be heard.", lane=Lane.interactive, client="b")
    worker.send("work_available")
    house.open_gate()
    house.wait_state(short, "done")
    house.wait_state(long, "done")
    assert recording(house, long) == [1, 2, 3, 4]
    assert house.row(short)["finished_at"] < house.row(long)["finished_at"]
    assert house.row(long)["retries"] == 0


def test_a_database_locked_for_longer_than_its_patience_does_not_end_a_worker(
    house: House, start: Start
) -> None:
    """The lock is held until the worker has met it at least twice (its connection waits 5 s each time)."""
    job_id = house.submit(sentences(2, extra="wait", only=1))
    worker = start()
    house.wait_in_segment(job_id, 0)
    locker = sqlite3.connect(house.paths.database, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    locked_at = time.monotonic()
    house.open_gate()
    eventually(lambda: time.monotonic() - locked_at > 6.0, "the worker's patience is over once")
    assert worker.popen.poll() is None
    locker.execute("ROLLBACK")
    locker.close()
    house.wait_state(job_id, "done")
    assert recording(house, job_id) == [1, 2] and house.row(job_id)["retries"] == 0


def test_out_of_memory_is_told_and_ends_the_worker(house: House, start: Start) -> None:
    job_id = house.submit(sentences(1, extra="memory"))
    worker = start()
    assert worker.wait() == 70
    (oom,) = worker.heard("oom")
    assert (oom["resource"], oom["job"]) == ("vram", job_id) and oom["footprint"]["rss_bytes"] > 0
    assert worker.heard("fatal") == [{"code": "out_of_memory", "params": {"resource": "vram"}}]
    assert house.state(job_id) == "queued"


def test_trim_reports_what_it_freed(house: House, start: Start) -> None:
    worker = start()
    worker.wait_for("ready")
    report = worker.call("trim")["result"]
    assert set(report) == {"rss_before", "rss_after", "vram_before", "vram_after"}
    assert report["rss_after"] > 0 and report["vram_after"] is None


@pytest.mark.parametrize(
    ("load", "code", "status"), [("missing", "model_missing", 75), ("oom", "out_of_memory", 70)]
)
def test_an_engine_that_cannot_load_is_told(
    house: House, start: Start, load: str, code: str, status: int
) -> None:
    worker = start(SCRIPTED_LOAD=load)
    assert worker.wait_for("fatal")["code"] == code
    assert worker.wait() == status
    assert not worker.heard("ready")


def test_a_database_of_another_version_is_refused(house: House, start: Start) -> None:
    house.conn.execute("PRAGMA user_version=999")
    worker = start()
    fatal = worker.wait_for("fatal")
    assert fatal["code"] == "schema_mismatch" and fatal["params"]["found"] == 999
    assert worker.wait() == 75


def test_an_unknown_engine_is_told(house: House) -> None:
    worker = WorkerProcess(house, engine="nobody")
    try:
        assert worker.wait_for("fatal")["code"] == "engine_failed"
        assert worker.wait() == 75
    finally:
        worker.close()


def test_spoken_text_never_reaches_the_log(house: House, start: Start) -> None:
    job_id = house.submit("Number 3 says a secret thing and goes boom.")
    worker = start()
    house.wait_state(job_id, "failed")
    worker.send("shutdown", grace_s=1)
    worker.wait()
    worker.close()
    assert b"RuntimeError" in worker.stderr and b"secret" not in worker.stderr
