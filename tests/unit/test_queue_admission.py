"""Accepting jobs: room, patience, disk, estimates, positions; and what a look at the queue costs."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from pipeline import queue
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, JobState, Lane
from pipeline.paths import StatePaths
from pipeline.queue import Outcome, Position
from tests.unit.storekit import (
    CONFIG,
    NOW,
    claim,
    opened,
    rows,
    submit,
)

# -- accept ----------------------------------------------------------------------------------------


def test_an_accepted_job_has_its_request_a_seed_and_a_deadline(conn: sqlite3.Connection) -> None:
    request = JobRequest(text="你好", voice="heart", source="openai", client="c1", owner="ann", speed=2.0)
    job_id = queue.submit(
        conn,
        request,
        engine="builtin",
        lane=Lane.interactive,
        now=NOW,
        config=CONFIG,
        patience_s=60,
        free_bytes=2**40,
    )
    job = queue.get_job(conn, job_id)
    assert job is not None and job.request is not None
    assert job.request == replace(request, seed=job.request.seed)
    assert job.request.seed is not None
    assert (job.state, job.attempt, job.lane) == (JobState.QUEUED, 1, Lane.interactive)
    assert (job.source, job.client, job.owner) == ("openai", "c1", "ann")
    assert job.deadline_at == utc_text(NOW + 600)
    assert job.created_at == utc_text(NOW)


def test_a_given_seed_and_id_are_kept(conn: sqlite3.Connection) -> None:
    request = JobRequest(text="x", voice="heart", seed=7)
    found = queue.submit(
        conn, request, engine="e", lane=Lane.page, now=NOW, config=CONFIG, job_id="0123456789abcdef"
    )
    job = queue.get_job(conn, found)
    assert found == "0123456789abcdef" and job is not None and job.request == request


def test_little_free_space_refuses_new_jobs(conn: sqlite3.Connection) -> None:
    request = JobRequest(text="x", voice="heart")
    free = CONFIG.limits.min_free_bytes - 1
    with pytest.raises(CosydError) as caught:
        queue.submit(
            conn,
            request,
            engine="e",
            lane=Lane.page,
            now=NOW,
            config=CONFIG,
            patience_s=math.inf,
            free_bytes=free,
        )
    assert caught.value.code == "storage_full"
    assert caught.value.params["free_bytes"] == free
    assert rows(conn, "SELECT * FROM jobs") == []


def long_text(seconds: float) -> str:
    """A text of about that many seconds of speech, never a short request."""
    text = "word " * round(seconds * 15 / 4)
    assert len(text) >= CONFIG.limits.interactive_chars
    return text


def test_a_lane_that_holds_its_limit_refuses_and_says_when(conn: sqlite3.Connection) -> None:
    for _ in range(3):
        submit(conn, long_text(100))
    with pytest.raises(CosydError) as caught:
        submit(conn, long_text(100))
    assert caught.value.code == "queue_full"
    assert caught.value.retry_after_s is not None and caught.value.retry_after_s >= 1
    assert submit(conn, long_text(100), lane=Lane.batch), "another lane has room of its own"
    assert submit(conn, long_text(100), engine="other"), "and so has another engine"


def test_a_text_longer_than_the_limit_is_taken_when_nothing_waits(conn: sqlite3.Connection) -> None:
    assert submit(conn, long_text(1000))


def test_short_requests_are_taken_even_when_the_lane_is_full(conn: sqlite3.Connection) -> None:
    submit(conn, long_text(1000))
    config = replace(CONFIG, limits=replace(CONFIG.limits, short_requests_min=5))
    for _ in range(5):
        submit(conn, "Short.", config=config)
    with pytest.raises(CosydError) as caught:
        submit(conn, "Short.", config=config)
    assert caught.value.code == "queue_full"


def test_a_wait_longer_than_the_clients_patience_is_refused(conn: sqlite3.Connection) -> None:
    submit(conn, long_text(200))
    with pytest.raises(CosydError) as caught:
        submit(conn, long_text(30), patience_s=60.0)
    assert caught.value.code == "queue_full"
    assert caught.value.params["wait_s"] == pytest.approx(200 * queue.admission.DEFAULT_RTF, rel=0.05)
    assert submit(conn, long_text(30), patience_s=200.0)


def test_an_interactive_client_waits_for_one_segment_of_a_long_text_at_most(conn: sqlite3.Connection) -> None:
    submit(conn, long_text(1000), lane=Lane.batch)
    assert submit(conn, long_text(30), lane=Lane.interactive, patience_s=CONFIG.longest_segment_s)


def finish_one(conn: sqlite3.Connection, engine: str, rtf: float, now: float = NOW) -> None:
    job = submit(conn, now=now, engine=engine)
    token = claim(conn, job, now=now)
    outcome = Outcome("done", audio_seconds=10.0, synthesis_seconds=10.0 * rtf)
    assert queue.end_job(conn, job, outcome, now, token)


def test_the_estimate_uses_what_the_engine_measured(conn: sqlite3.Connection) -> None:
    assert queue.estimated_rtf(conn, "fast") == queue.admission.DEFAULT_RTF
    for rtf in (0.01, 0.01, 5.0):
        finish_one(conn, "fast", rtf)
    finish_one(conn, "slow", 3.0)
    assert queue.estimated_rtf(conn, "fast") == pytest.approx(0.01)
    assert queue.estimated_rtf(conn, "slow") == pytest.approx(3.0)


def test_a_wait_that_was_foreseen_does_not_run_into_the_deadline(conn: sqlite3.Connection) -> None:
    finish_one(conn, "slow", 10.0)
    submit(conn, long_text(200), engine="slow")
    late = submit(conn, "Short.", engine="slow")
    job = queue.get_job(conn, late)
    assert job is not None and job.deadline_at is not None
    assert job.deadline_at > utc_text(NOW + 600 + 2000)


def test_position_and_stats_count_who_goes_before(conn: sqlite3.Connection) -> None:
    first = submit(conn, "a" * 150, now=NOW)
    batch = submit(conn, "a" * 150, now=NOW - 5, lane=Lane.batch)
    second = submit(conn, "a" * 150, now=NOW + 1)
    claim(conn, first, now=NOW + 2)
    assert queue.position(conn, first) == Position(0, 0.0)
    assert queue.position(conn, second) == Position(1, pytest.approx(10 * 0.5))
    assert queue.position(conn, batch) == Position(2, pytest.approx(20 * 0.5))
    assert queue.position(conn, "no such job") is None
    stats = queue.queue_stats(conn, NOW + 5)
    assert stats == {"builtin": queue.EngineQueue(2, 1, pytest.approx(10.0), pytest.approx(30.0))}


def test_stats_leave_out_what_is_over_or_about_to_be(conn: sqlite3.Connection) -> None:
    done, cancelled = submit(conn), submit(conn)
    queue.end_job(conn, done, Outcome("failed", "internal"), NOW)
    queue.request_cancel(conn, cancelled, NOW)
    assert queue.queue_stats(conn, NOW) == {}
    assert queue.position(conn, done) is None


def test_stats_of_a_thousand_jobs_are_one_look_at_each_and_none_at_the_jobs_that_are_over(
    paths: StatePaths, conn: sqlite3.Connection
) -> None:
    """Counted in SQLite's own instructions, some 50 for each waiting job: about a millisecond in all."""
    config = replace(CONFIG, limits=replace(CONFIG.limits, short_requests_min=10_000))
    conn.execute("PRAGMA synchronous=OFF")
    for i in range(1000):
        submit(conn, engine=f"e{i % 3}", config=config)
    for i in range(2000):
        queue.end_job(conn, submit(conn, engine="e0", config=config), Outcome("done"), NOW + i)
    with closing(opened(paths, "read")) as reader:
        ticks = 0

        def tick() -> int:
            nonlocal ticks
            ticks += 1
            return 0

        reader.set_progress_handler(tick, 100)
        stats = queue.queue_stats(reader, NOW)
    assert sum(q.queued for q in stats.values()) == 1000
    assert 0 < ticks * 100 <= 1000 * 100, f"{ticks * 100} instructions"


def test_no_look_at_the_queue_reads_the_jobs_that_are_over(conn: sqlite3.Connection) -> None:
    """After half a year there are a hundred thousand of them, and the supervisor looks each second."""
    jobs = [submit(conn) for _ in range(3)]
    statements: set[str] = set()
    conn.set_trace_callback(statements.add)
    queue.queue_stats(conn, NOW)
    queue.position(conn, jobs[2])
    queue.candidates(conn, "builtin", NOW)
    queue.end_overdue(conn, NOW, CONFIG)
    queue.request_cancel(conn, jobs[1], NOW)
    queue.end_overdue(conn, NOW, CONFIG)
    queue.set_wait_reason(conn, "builtin", "waiting_memory")
    claim(conn, jobs[0])
    queue.expire_leases(conn, NOW, alive=["w"])
    queue.requeue_owner(conn, "w1", NOW)
    queue.requeue_running(conn, NOW)
    queue.fail_engine_jobs(conn, "builtin", NOW, "engine_failed")
    conn.set_trace_callback(None)
    looks = [s for s in statements if s.startswith(("SELECT", "UPDATE"))]
    assert len(looks) > 15
    for sql in looks:
        for row in conn.execute("EXPLAIN QUERY PLAN " + sql):
            if row["detail"].startswith(("SCAN jobs", "SCAN j ", "SCAN generations")):
                assert "INDEX jobs_active" in row["detail"], sql
