"""The life of a job in the tables: accept, claim, pieces, giving way, death of workers, the end."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import queue
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, JobState, Lane, SegmentState
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.queue import Outcome, Planned, Position, Requeued
from tests.unit.storekit import NOW, new_state, opened, rows, submit

CONFIG = Config()
LEASE_S = CONFIG.lease_s


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")


@pytest.fixture
def conn(paths: StatePaths) -> Iterator[sqlite3.Connection]:
    with closing(opened(paths)) as connection:
        yield connection


def claim(conn: sqlite3.Connection, job: str, owner: str = "w1", now: float = NOW) -> str:
    """Claim and return the token."""
    claimed = queue.claim(conn, job, owner, now, LEASE_S)
    assert claimed is not None
    return claimed.token


def planned(conn: sqlite3.Connection, job: str, token: str, count: int = 3) -> None:
    pieces = [Planned(i, f"piece {i}", 10 * i, 10 * i + 7) for i in range(count)]
    assert queue.plan_segments(conn, job, token, pieces, seed=100)


def state_of(conn: sqlite3.Connection, job: str) -> JobState:
    found = queue.get_job(conn, job)
    assert found is not None
    return found.state


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


def test_stats_of_a_thousand_jobs_cost_about_a_millisecond(
    paths: StatePaths, conn: sqlite3.Connection
) -> None:
    config = replace(CONFIG, limits=replace(CONFIG.limits, short_requests_min=10_000))
    conn.execute("PRAGMA synchronous=OFF")
    for i in range(1000):
        submit(conn, engine=f"e{i % 3}", config=config)
    for i in range(2000):
        queue.end_job(conn, submit(conn, engine="e0", config=config), Outcome("done"), NOW + i)
    with closing(opened(paths, "read")) as reader:
        best = math.inf
        for _ in range(20):
            start = time.perf_counter()
            stats = queue.queue_stats(reader, NOW)
            best = min(best, time.perf_counter() - start)
    assert sum(q.queued for q in stats.values()) == 1000
    assert best < 0.005, f"{best * 1000:.2f} ms"


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


# -- claim and lease -------------------------------------------------------------------------------


def test_a_job_is_claimed_once(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    claimed = queue.claim(conn, job, "w1", NOW + 1, LEASE_S)
    assert claimed is not None
    assert (claimed.job.state, claimed.job.lease_owner) == (JobState.RUNNING, "w1")
    assert claimed.job.lease_until == utc_text(NOW + 1 + LEASE_S)
    assert queue.claim(conn, job, "w2", NOW + 1, LEASE_S) is None


@pytest.mark.parametrize("why", ["cancelled", "later", "over"])
def test_who_must_not_run_is_neither_candidate_nor_claimed(conn: sqlite3.Connection, why: str) -> None:
    job = submit(conn)
    if why == "cancelled":
        queue.request_cancel(conn, job, NOW)
    elif why == "later":
        queue.release(conn, job, claim(conn, job), NOW, not_before=NOW + 10)
    else:
        queue.end_job(conn, job, Outcome("failed", "internal"), NOW)
    assert queue.candidates(conn, "builtin", NOW + 1) == []
    assert queue.claim(conn, job, "w", NOW + 1, LEASE_S) is None
    if why == "later":
        assert [c.job_id for c in queue.candidates(conn, "builtin", NOW + 10)] == [job]
        assert queue.claim(conn, job, "w", NOW + 10, LEASE_S) is not None


def test_candidates_are_of_one_engine(conn: sqlite3.Connection) -> None:
    submit(conn, engine="other")
    mine = submit(conn, client="c", lane=Lane.batch)
    (found,) = queue.candidates(conn, "builtin", NOW)
    assert (found.job_id, found.client_key, found.lane) == (mine, "page:c", Lane.batch)


def test_a_worker_whose_job_was_taken_changes_nothing(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    old = claim(conn, job)
    planned(conn, job, old)
    queue.requeue_owner(conn, "w1", NOW)
    new = claim(conn, job, "w2")
    before = rows(conn, "SELECT * FROM jobs"), rows(conn, "SELECT * FROM segments")
    assert not queue.renew_lease(conn, job, old, NOW, LEASE_S)
    assert not queue.release(conn, job, old, NOW)
    assert not queue.plan_segments(conn, job, old, [Planned(0, "x", 0, 1)])
    assert not queue.begin_segment(conn, job, 0, old)
    assert not queue.finish_segment(conn, job, 0, old, samples=10)
    assert not queue.fail_segment(conn, job, 0, old, "bad_take")
    assert not queue.end_job(conn, job, Outcome("done"), NOW, old)
    assert queue.retry_leaner(conn, job, old, NOW) is None
    assert (rows(conn, "SELECT * FROM jobs"), rows(conn, "SELECT * FROM segments")) == before
    assert queue.renew_lease(conn, job, new, NOW, LEASE_S)


def test_giving_way_keeps_pieces_and_attempt(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    token = claim(conn, job)
    planned(conn, job, token)
    queue.begin_segment(conn, job, 0, token)
    queue.finish_segment(conn, job, 0, token, samples=24_000)
    queue.begin_segment(conn, job, 1, token)
    assert queue.release(conn, job, token, NOW)
    found = queue.get_job(conn, job)
    assert found is not None and (found.state, found.attempt, found.lease_owner) == (JobState.QUEUED, 1, None)
    assert [s.state for s in queue.load_segments(conn, job)] == [
        SegmentState.DONE,
        SegmentState.PENDING,
        SegmentState.PENDING,
    ]
    assert claim(conn, job, "w2") != token


# -- pieces ----------------------------------------------------------------------------------------


def test_pieces_have_their_place_text_and_seed(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    token = claim(conn, job)
    planned(conn, job, token, 2)
    second = queue.load_segments(conn, job)[1]
    assert (second.idx, second.start, second.end, second.text) == (1, 10, 17, "piece 1")
    assert (second.seed, second.attempt, second.samples, second.state) == (101, 0, 0, SegmentState.PENDING)


def test_a_leaner_cut_replaces_only_what_is_not_done(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    token = claim(conn, job)
    planned(conn, job, token, 3)
    queue.finish_segment(conn, job, 0, token, samples=5)
    queue.begin_segment(conn, job, 1, token)
    queue.requeue_owner(conn, "w1", NOW)
    token = claim(conn, job, "w2")
    leaner = [Planned(i, f"cut {i}", i, i + 1) for i in range(5)]
    assert queue.plan_segments(conn, job, token, leaner)
    found = queue.load_segments(conn, job)
    assert [s.text for s in found] == ["piece 0", "cut 1", "cut 2", "cut 3", "cut 4"]
    assert [s.samples for s in found] == [5, 0, 0, 0, 0]
    assert [s.attempt for s in found] == [0, 1, 0, 0, 0], "a crash is remembered"
    assert queue.plan_segments(conn, job, token, leaner[:2])
    assert len(queue.load_segments(conn, job)) == 2


def test_a_finished_piece_is_finished_once(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    token = claim(conn, job)
    planned(conn, job, token)
    assert queue.finish_segment(conn, job, 0, token, samples=5)
    assert not queue.finish_segment(conn, job, 0, token, samples=9)
    assert not queue.begin_segment(conn, job, 0, token)
    assert not queue.finish_segment(conn, job, 99, token, samples=5)


def test_a_bad_take_is_noted_and_made_again(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    token = claim(conn, job)
    planned(conn, job, token)
    queue.begin_segment(conn, job, 0, token)
    assert queue.fail_segment(conn, job, 0, token, "bad_take")
    piece = queue.load_segments(conn, job)[0]
    assert (piece.state, piece.error_code, piece.attempt) == (SegmentState.PENDING, "bad_take", 0)


# -- death of workers ------------------------------------------------------------------------------


def test_the_third_death_fails_the_job_with_one_row(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for attempt in (1, 2):
        planned(conn, job, claim(conn, job, "w"), attempt)
        assert queue.requeue_owner(conn, "w", NOW) == [Requeued(job, "builtin", attempt + 1)]
    claim(conn, job, "w")
    assert queue.requeue_owner(conn, "w", NOW) == [
        Requeued(job, "builtin", 3, failed=True, poison=False, code="worker_died")
    ]
    (row,) = rows(conn, "SELECT * FROM generations")
    assert (row["status"], row["error_code"], row["retries"]) == ("failed", "worker_died", 2)
    assert queue.requeue_owner(conn, "w", NOW) == []


def test_two_deaths_on_one_piece_are_poison(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for death in (1, 2):
        token = claim(conn, job, "w")
        planned(conn, job, token)
        queue.finish_segment(conn, job, 0, token, samples=5)
        queue.begin_segment(conn, job, 1, token)
        (returned,) = queue.requeue_owner(conn, "w", NOW)
        assert (returned.failed, returned.poison) == (death == 2, death == 2)
    assert returned.code == "worker_died"
    assert state_of(conn, job) == JobState.FAILED


def test_a_worker_killed_for_memory_does_not_make_its_piece_poison(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for attempt in (1, 2):
        token = claim(conn, job, "w")
        planned(conn, job, token)
        queue.begin_segment(conn, job, 0, token)
        assert queue.requeue_owner(conn, "w", NOW, crashed=False) == [Requeued(job, "builtin", attempt + 1)]
    claim(conn, job, "w")
    (returned,) = queue.requeue_owner(conn, "w", NOW, crashed=False)
    assert (returned.failed, returned.poison) == (True, False), "but three attempts are three attempts"


def test_deaths_on_different_pieces_are_not_poison(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for piece in (0, 1):
        token = claim(conn, job, "w")
        planned(conn, job, token)
        queue.finish_segment(conn, job, piece - 1, token, samples=5)
        queue.begin_segment(conn, job, piece, token)
        (returned,) = queue.requeue_owner(conn, "w", NOW)
        assert not returned.failed


def test_out_of_memory_is_tried_leaner_and_never_poison(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for attempt in (1, 2):
        token = claim(conn, job, now=NOW + attempt)
        planned(conn, job, token)
        queue.begin_segment(conn, job, 0, token)
        returned = queue.retry_leaner(conn, job, token, NOW, not_before=NOW + attempt + 1)
        assert returned == Requeued(job, "builtin", attempt + 1)
        assert queue.load_segments(conn, job)[0].attempt == 0
    returned = queue.retry_leaner(conn, job, claim(conn, job, now=NOW + 3), NOW)
    assert returned == Requeued(job, "builtin", 3, failed=True, poison=False, code="out_of_memory")
    assert rows(conn, "SELECT error_code FROM generations") == [{"error_code": "out_of_memory"}]


def test_only_the_dead_owners_jobs_return(conn: sqlite3.Connection) -> None:
    mine, other = submit(conn), submit(conn)
    claim(conn, mine, "w1")
    claim(conn, other, "w2")
    assert [r.job_id for r in queue.requeue_owner(conn, "w1", NOW)] == [mine]
    assert state_of(conn, other) == JobState.RUNNING


def test_leases_expire_by_time_but_not_those_of_the_living(conn: sqlite3.Connection) -> None:
    first, second = submit(conn), submit(conn)
    claim(conn, first, "w1")
    token = claim(conn, second, "w2")
    assert queue.expire_leases(conn, NOW + LEASE_S) == []
    assert queue.renew_lease(conn, second, token, NOW + 10, LEASE_S)
    assert [r.job_id for r in queue.expire_leases(conn, NOW + LEASE_S + 1)] == [first]
    assert queue.expire_leases(conn, NOW + 100, alive=["w2"]) == []
    assert [r.job_id for r in queue.expire_leases(conn, NOW + 100)] == [second]


def test_at_the_start_every_running_job_returns(conn: sqlite3.Connection) -> None:
    jobs = [submit(conn, now=NOW + i) for i in range(3)]
    for i, job in enumerate(jobs[:2]):
        claim(conn, job, f"w{i}", NOW + 5)
    assert [r.job_id for r in queue.requeue_running(conn, NOW + 6)] == jobs[:2]
    assert all(state_of(conn, job) == JobState.QUEUED for job in jobs)


def test_a_cancelled_job_whose_worker_dies_is_cancelled_not_retried(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    claim(conn, job, "w")
    assert queue.request_cancel(conn, job, NOW)
    assert queue.cancel_requested(conn, job)
    (returned,) = queue.requeue_owner(conn, "w", NOW)
    assert (returned.failed, returned.code) == (True, "cancelled")
    assert state_of(conn, job) == JobState.CANCELLED


# -- the end ---------------------------------------------------------------------------------------


def test_a_done_job_has_a_row_with_every_number(conn: sqlite3.Connection) -> None:
    request = JobRequest(
        text="你好 world", voice="heart", language="zh", speed=1.5, seed=9, source="api",
        client="c", owner="ann", mode="instruct", instruct="gently",
    )  # fmt: skip
    job = queue.submit(
        conn, request, engine="builtin", lane=Lane.page, now=NOW, config=CONFIG, free_bytes=2**40
    )
    dead = claim(conn, job, "w1", NOW + 1)
    planned(conn, job, dead, 2)
    queue.finish_segment(conn, job, 0, dead, samples=24_000, synthesis_s=0.5, first_audio_at=NOW + 1.25)
    queue.requeue_owner(conn, "w1", NOW + 2)
    token = claim(conn, job, "w2", NOW + 3)
    queue.finish_segment(conn, job, 1, token, samples=24_000, synthesis_s=0.25, first_audio_at=NOW + 3.5)
    outcome = Outcome(
        "done", audio_path="outputs/2026-09/x.flac", audio_format="flac", audio_seconds=2.0,
        model="kokoro", device="cpu", dtype="float32", profile="cpu", peak_rss_bytes=5, peak_vram_bytes=6,
        stand_in=True, degraded=True,
    )  # fmt: skip
    assert queue.end_job(conn, job, outcome, NOW + 4, token)
    (row,) = rows(conn, "SELECT * FROM generations")
    assert row == {
        "seq": 1, "id": job, "job_id": job, "created_at": utc_text(NOW), "finished_at": utc_text(NOW + 4),
        "status": "done", "text": "你好 world", "language": "zh", "mode": "instruct", "voice": "heart",
        "instruct": "gently", "seed": 9, "speed": 1.5, "engine": "builtin", "model": "kokoro",
        "device": "cpu", "dtype": "float32", "profile": "cpu", "source": "api", "client": "c",
        "owner": "ann", "audio_path": "outputs/2026-09/x.flac", "audio_format": "flac",
        "audio_seconds": 2.0, "queue_seconds": 1.0, "first_audio_seconds": 1.25, "synthesis_seconds": 0.75,
        "rtf": 0.375, "peak_rss_bytes": 5, "peak_vram_bytes": 6, "segments": 2, "retries": 1,
        "stand_in": 1, "degraded": 1, "error_code": None, "error": None,
    }  # fmt: skip


def test_text_is_stored_once_when_the_job_is_over(conn: sqlite3.Connection) -> None:
    secret = "Nobody else should keep this sentence."
    job = submit(conn, secret)
    token = claim(conn, job)
    queue.plan_segments(conn, job, token, [Planned(0, secret, 0, len(secret))])
    queue.end_job(conn, job, Outcome("done"), NOW, token)
    assert rows(conn, "SELECT request FROM jobs") == [{"request": ""}]
    assert rows(conn, "SELECT text FROM segments") == [{"text": ""}]
    assert rows(conn, "SELECT text FROM generations") == [{"text": secret}]
    assert rows(conn, "SELECT * FROM job_work") == []
    found = queue.get_job(conn, job)
    assert found is not None and found.request is None


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_a_job_ends_once(conn: sqlite3.Connection, status: str) -> None:
    job = submit(conn)
    token = claim(conn, job)
    assert queue.end_job(conn, job, Outcome(status), NOW, token)  # type: ignore[arg-type]
    for later in ("done", "failed"):
        assert not queue.end_job(conn, job, Outcome(later), NOW, token)  # type: ignore[arg-type]
        assert not queue.end_job(conn, job, Outcome(later), NOW)  # type: ignore[arg-type]
    assert rows(conn, "SELECT status FROM generations") == [{"status": status}]
    assert not queue.end_job(conn, "no such job", Outcome("done"), NOW)
    assert not queue.request_cancel(conn, job, NOW)


def test_if_the_row_cannot_be_written_the_job_is_not_over(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    token = claim(conn, job)
    conn.execute("CREATE TRIGGER refuse BEFORE INSERT ON generations BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.IntegrityError):
        queue.end_job(conn, job, Outcome("done"), NOW, token)
    found = queue.get_job(conn, job)
    assert found is not None and found.state == JobState.RUNNING and found.request is not None


def test_a_request_of_another_version_can_still_be_ended(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    conn.execute("UPDATE jobs SET request=?", (json.dumps({"v": 9, "text": "later words", "new": 1}),))
    assert queue.end_job(conn, job, Outcome("failed", "internal"), NOW)
    assert rows(conn, "SELECT text, error_code FROM generations") == [
        {"text": "later words", "error_code": "internal"}
    ]


def test_what_was_not_begun_by_its_deadline_fails_and_what_was_begun_does_not(
    conn: sqlite3.Connection,
) -> None:
    waiting, begun = submit(conn), submit(conn)
    token = claim(conn, begun)
    planned(conn, begun, token)
    queue.finish_segment(conn, begun, 0, token, samples=5)
    queue.release(conn, begun, token, NOW)
    assert queue.end_overdue(conn, NOW + 600, CONFIG) == []
    assert queue.end_overdue(conn, NOW + 601, CONFIG) == [waiting]
    (row,) = rows(conn, "SELECT status, error_code, queue_seconds, audio_path FROM generations")
    assert row == {"status": "failed", "error_code": "deadline", "queue_seconds": 601.0, "audio_path": None}


def test_a_job_cancelled_while_queued_ends_as_cancelled(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    assert queue.request_cancel(conn, job, NOW)
    assert queue.request_cancel(conn, job, NOW + 1), "asking twice is fine"
    assert queue.end_overdue(conn, NOW + 1, CONFIG) == [job]
    assert rows(conn, "SELECT status FROM generations") == [{"status": "cancelled"}]


def test_the_jobs_of_a_failed_engine_end_with_its_code(conn: sqlite3.Connection) -> None:
    jobs = [submit(conn), submit(conn)]
    other = submit(conn, engine="other")
    assert sorted(queue.fail_engine_jobs(conn, "builtin", NOW, "engine_failed", '{"reason": "x"}')) == sorted(
        jobs
    )
    assert state_of(conn, other) == JobState.QUEUED
    assert queue.fail_engine_jobs(conn, "builtin", NOW, "engine_failed") == []
    found = queue.get_job(conn, jobs[0])
    assert found is not None and (found.error_code, found.error) == ("engine_failed", '{"reason": "x"}')


def test_a_wait_reason_is_shown_then_gone_when_claimed(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    assert queue.set_wait_reason(conn, "builtin", "waiting_memory") == 1
    assert queue.set_wait_reason(conn, "builtin", "waiting_memory") == 0
    found = queue.get_job(conn, job)
    assert found is not None and found.wait_reason == "waiting_memory"
    claimed = queue.claim(conn, job, "w", NOW, LEASE_S)
    assert claimed is not None and claimed.job.wait_reason is None
