"""Hypothesis against the queue: workers that claim, crash, hang, give way and end; people who cancel."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from pipeline import queue
from pipeline.jobs import FINAL_STATES, JobState, Lane, SegmentState
from pipeline.profile import Config
from pipeline.queue import MAX_ATTEMPTS, POISON_CRASHES, Outcome, Planned
from tests.unit.storekit import NOW, new_state, opened, rows, submit

LEASE_S = 15.0
PIECES = 3
CONFIG = replace(Config(), limits=replace(Config().limits, short_requests_min=10_000))


class QueueMachine(RuleBasedStateMachine):
    """The model: who really holds which job, and what was ever accepted or finished."""

    held = Bundle("held")  # (job, token, owner) as a worker remembers it, perhaps wrongly by now

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.folder = Path(tempfile.mkdtemp(prefix="cosyd-queue-"))
        self.accepted: dict[str, str] = {}
        self.tokens: dict[str, str] = {}  # the one live token of a job
        self.finished: dict[str, dict[int, int]] = {}
        self.workers = 0

    @initialize()
    def open(self) -> None:
        self.conn = opened(new_state(self.folder))
        self.conn.execute("PRAGMA synchronous=OFF")  # the test kills no machine

    def teardown(self) -> None:
        if hasattr(self, "conn"):
            self.conn.close()
        shutil.rmtree(self.folder)

    @rule(lane=st.sampled_from(Lane), client=st.sampled_from("abc"))
    def accept(self, lane: Lane, client: str) -> None:
        text = f"text {len(self.accepted)}"
        # Ids by count, not by chance: a run must be the same when it is repeated.
        job_id = f"{len(self.accepted):016x}"
        job = submit(self.conn, text, now=self.now, lane=lane, client=client, config=CONFIG, job_id=job_id)
        self.accepted[job], self.finished[job] = text, {}

    @rule(target=held, pick=st.integers(0, 10))
    def claim(self, pick: int) -> object:
        waiting = queue.candidates(self.conn, "builtin", self.now)
        if not waiting:
            return multiple()
        job = waiting[pick % len(waiting)].job_id
        self.workers += 1
        owner = f"w{self.workers}"
        claimed = queue.claim(self.conn, job, owner, self.now, LEASE_S)
        assert claimed is not None
        assert queue.claim(self.conn, job, "thief", self.now, LEASE_S) is None
        assert job not in self.tokens, "a held job is no candidate"
        assert claimed.token not in self.tokens.values()
        self.tokens[job] = claimed.token
        pieces = [Planned(i, f"{job} {i}", i, i + 1) for i in range(PIECES)]
        assert queue.plan_segments(self.conn, job, claimed.token, pieces)
        return (job, claimed.token, owner)

    def live(self, worker: tuple[str, str, str]) -> bool:
        return self.tokens.get(worker[0]) == worker[1]

    @rule(worker=held, idx=st.integers(0, PIECES - 1))
    def begin(self, worker: tuple[str, str, str], idx: int) -> None:
        job, token, _ = worker
        assert queue.begin_segment(self.conn, job, idx, token) == (
            self.live(worker) and idx not in self.finished[job]
        )

    @rule(worker=held, idx=st.integers(0, PIECES - 1), samples=st.integers(1, 100_000))
    def finish(self, worker: tuple[str, str, str], idx: int, samples: int) -> None:
        job, token, _ = worker
        done = queue.finish_segment(self.conn, job, idx, token, samples=samples, synthesis_s=0.1)
        assert done == (self.live(worker) and idx not in self.finished[job])
        if done:
            self.finished[job][idx] = samples

    @rule(worker=held)
    def renew(self, worker: tuple[str, str, str]) -> None:
        assert queue.renew_lease(self.conn, worker[0], worker[1], self.now, LEASE_S) == self.live(worker)

    @rule(worker=consumes(held))
    def give_way(self, worker: tuple[str, str, str]) -> None:
        job, token, _ = worker
        assert queue.release(self.conn, job, token, self.now) == self.live(worker)
        if self.live(worker):
            del self.tokens[job]

    @rule(worker=consumes(held), status=st.sampled_from(["done", "failed", "cancelled"]))
    def end(self, worker: tuple[str, str, str], status: str) -> None:
        job, token, _ = worker
        ended = queue.end_job(self.conn, job, Outcome(status), self.now, token)  # type: ignore[arg-type]
        assert ended == self.live(worker)
        if ended:
            del self.tokens[job]

    @rule(worker=consumes(held))
    def out_of_memory(self, worker: tuple[str, str, str]) -> None:
        returned = queue.retry_leaner(self.conn, worker[0], worker[1], self.now)
        assert (returned is not None) == self.live(worker)
        if returned is not None:
            assert not returned.poison
            del self.tokens[worker[0]]

    @rule(worker=consumes(held))
    def crash(self, worker: tuple[str, str, str]) -> None:
        self.returned(queue.requeue_owner(self.conn, worker[2], self.now), {worker[0]} & set(self.tokens))

    @rule(worker=held)
    def crash_that_the_worker_survives(self, worker: tuple[str, str, str]) -> None:
        """The supervisor thinks it dead, but it goes on writing: all that is refused from now on."""
        expected = {worker[0]} if self.live(worker) else set()
        self.returned(queue.requeue_owner(self.conn, worker[2], self.now), expected)

    def returned(self, found: list[queue.Requeued], expected: set[str]) -> None:
        assert {r.job_id for r in found} <= set(self.tokens)
        assert {r.job_id for r in found} <= expected
        for r in found:
            del self.tokens[r.job_id]
            assert r.attempt <= MAX_ATTEMPTS + len(self.finished[r.job_id])

    @rule(seconds=st.sampled_from([1.0, LEASE_S + 1, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def leases_expire(self) -> None:
        self.returned(queue.expire_leases(self.conn, self.now), set(self.tokens))

    @rule()
    def supervisor_restarts(self) -> None:
        found = queue.requeue_running(self.conn, self.now)
        assert {r.job_id for r in found} == set(self.tokens)
        self.returned(found, set(self.tokens))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.accepted)))
        found = queue.get_job(self.conn, job)
        assert found is not None
        assert queue.request_cancel(self.conn, job, self.now) == (found.state not in FINAL_STATES)

    @rule()
    def end_overdue(self) -> None:
        for job in queue.end_overdue(self.conn, self.now, CONFIG):
            assert job not in self.tokens

    @invariant()
    def every_accepted_job_is_there_once(self) -> None:
        if not hasattr(self, "conn"):
            return
        jobs = {row["id"]: row for row in rows(self.conn, "SELECT * FROM jobs")}
        assert set(jobs) == set(self.accepted)
        generations = rows(self.conn, "SELECT * FROM generations")
        ended = {str(row["job_id"]): row for row in generations}
        assert len(ended) == len(generations)
        assert set(ended) == {job for job, row in jobs.items() if row["state"] in FINAL_STATES}
        for job, row in ended.items():
            assert (row["text"], row["status"]) == (self.accepted[job], jobs[job]["state"])
        working = {str(row["job_id"]) for row in rows(self.conn, "SELECT job_id FROM job_work")}
        assert working == set(jobs) - set(ended)
        indexed = rows(self.conn, "SELECT rowid AS seq FROM generations_fts")
        assert [row["seq"] for row in indexed] == [row["seq"] for row in generations]
        for job, row in jobs.items():
            assert 1 <= int(str(row["attempt"])) <= MAX_ATTEMPTS
            assert (row["state"] == JobState.RUNNING) == (job in self.tokens)
            assert row["lease_token"] == self.tokens.get(job)
            assert bool(row["request"]) == (job not in ended)

    @invariant()
    def no_finished_piece_is_lost_or_changed(self) -> None:
        if not hasattr(self, "conn"):
            return
        for job, expected in self.finished.items():
            pieces = queue.load_segments(self.conn, job)
            assert {s.idx: s.samples for s in pieces if s.state == SegmentState.DONE} == expected
            assert len(pieces) in (0, PIECES)
            assert all(s.attempt <= POISON_CRASHES for s in pieces)
            if job not in self.tokens:
                assert all(s.state != SegmentState.RUNNING or self.over(job) for s in pieces)

    def over(self, job: str) -> bool:
        found = queue.get_job(self.conn, job)
        return found is not None and found.state in FINAL_STATES


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_the_machine_notices_a_lost_job(tmp_path: Path) -> None:
    """The invariants can fail: a row that vanishes behind their back is seen."""
    machine = QueueMachine()
    machine.open()
    machine.accept(Lane.page, "a")
    machine.every_accepted_job_is_there_once()
    machine.conn.execute("DELETE FROM jobs")
    with closing(machine.conn):
        try:
            machine.every_accepted_job_is_there_once()
        except AssertionError:
            shutil.rmtree(machine.folder)
            return
    raise AssertionError("the loss was not noticed")
