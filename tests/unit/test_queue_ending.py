"""Dead workers and the end of a job: attempts, poison, the one generation row, deadlines, cancels."""

from __future__ import annotations

import json
import sqlite3

import pytest

from pipeline import queue
from pipeline.clock import utc_text
from pipeline.jobs import JobRequest, JobState, Lane
from pipeline.queue import Outcome, Planned, Requeued
from tests.unit.storekit import (
    CONFIG,
    LEASE_S,
    NOW,
    claim,
    planned,
    rows,
    state_of,
    submit,
)

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


def test_a_worker_ended_by_a_stop_costs_the_job_no_try(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for _ in range(5):
        planned(conn, job, claim(conn, job, "w"))
        (returned,) = queue.requeue_owner(conn, "w", NOW, crashed=False, counted=False)
        assert (returned.failed, returned.attempt) == (False, 1)


def test_each_finished_piece_is_one_more_try(conn: sqlite3.Connection) -> None:
    """A text of hours may lose its worker now and then; one that never gets on may do so three times."""
    job = submit(conn)
    for piece in range(3):
        token = claim(conn, job, "w")
        planned(conn, job, token)
        queue.finish_segment(conn, job, piece, token, samples=5)
        assert not queue.requeue_owner(conn, "w", NOW)[0].failed
    for attempt in (4, 5):
        claim(conn, job, "w")
        (returned,) = queue.requeue_owner(conn, "w", NOW)
        assert (returned.failed, returned.attempt) == (False, attempt + 1)
    claim(conn, job, "w")
    assert queue.requeue_owner(conn, "w", NOW)[0].failed


def test_a_house_that_fell_again_and_again_does_not_make_a_piece_poison(conn: sqlite3.Connection) -> None:
    job = submit(conn)
    for _ in (1, 2):
        token = claim(conn, job, "w")
        planned(conn, job, token)
        queue.begin_segment(conn, job, 0, token)
        (returned,) = queue.requeue_running(conn, NOW)
        assert not returned.failed


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


def test_a_job_that_its_living_owner_has_turned_from_expires_and_the_one_in_hand_does_not(
    conn: sqlite3.Connection,
) -> None:
    left, held = submit(conn), submit(conn)
    claim(conn, left, "w")
    claim(conn, held, "w")
    assert [r.job_id for r in queue.expire_leases(conn, NOW + 100, holding=[("w", held)])] == [left]
    assert state_of(conn, held) == JobState.RUNNING


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
