"""Claims, leases and pieces: tokens, giving way, planning and finishing segments."""

from __future__ import annotations

import sqlite3

import pytest

from pipeline import queue
from pipeline.clock import utc_text
from pipeline.jobs import JobState, Lane, SegmentState
from pipeline.queue import Outcome, Planned
from tests.unit.storekit import (
    LEASE_S,
    NOW,
    claim,
    planned,
    rows,
    submit,
)

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
