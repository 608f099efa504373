"""Hands a job to a worker and takes it back. A claim draws a token; every later write must show it.

The worker claims, renews, gives way; the supervisor returns the jobs of dead children. A worker that was
taken for dead and still writes changes nothing: its token is no longer in the row.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Collection

from pipeline.clock import utc_text
from pipeline.queue.ending import end_in_transaction
from pipeline.queue.rows import JOB_COLUMNS, job_from_row
from pipeline.queue.values import ACTIVE, MAX_ATTEMPTS, POISON_CRASHES, Claim, Outcome, Requeued
from pipeline.store.db import write_transaction


def claim(conn: sqlite3.Connection, job_id: str, owner: str, now: float, lease_s: float) -> Claim | None:
    """Take a queued job under a new token until `now + lease_s`; None when it is no longer to be had."""
    at, token = utc_text(now), secrets.token_hex(16)
    with write_transaction(conn):
        rows = conn.execute(
            "UPDATE jobs SET state='running', lease_owner=?, lease_token=?, lease_until=?, wait_reason=NULL, "
            "not_before=NULL, updated_at=? WHERE id=? AND state='queued' AND cancel_requested_at IS NULL "
            f"AND (not_before IS NULL OR not_before<=?) RETURNING {JOB_COLUMNS}",
            (owner, token, utc_text(now + lease_s), at, job_id, at),
        ).fetchall()
        if not rows:
            return None
        conn.execute("UPDATE job_work SET claimed_at=coalesce(claimed_at, ?) WHERE job_id=?", (at, job_id))
        return Claim(job_from_row(rows[0]), token)


def renew_lease(conn: sqlite3.Connection, job_id: str, token: str, now: float, lease_s: float) -> bool:
    """Keep the job until `now + lease_s`. False: it is no longer ours, stop."""
    with write_transaction(conn):
        changed = conn.execute(
            "UPDATE jobs SET lease_until=? WHERE id=? AND lease_token=? AND state='running'",
            (utc_text(now + lease_s), job_id, token),
        ).rowcount
    return changed == 1


def still_held(conn: sqlite3.Connection, job_id: str, token: str) -> bool:
    """Whether the job is ours: a read, for right before a file gets its final name."""
    row = conn.execute(
        "SELECT 1 FROM jobs WHERE id=? AND lease_token=? AND state='running'", (job_id, token)
    ).fetchone()
    return row is not None


def cancel_requested(conn: sqlite3.Connection, job_id: str) -> bool:
    """Whether somebody asked to stop the job: the safety net for a lost `cancel` message."""
    row = conn.execute("SELECT cancel_requested_at FROM jobs WHERE id=?", (job_id,)).fetchone()
    return row is not None and row[0] is not None


def release(
    conn: sqlite3.Connection, job_id: str, token: str, now: float, *, not_before: float | None = None
) -> bool:
    """Give way between segments, or hand back on a drain: queued again, attempt unchanged, finished segments
    kept. False when the job is no longer ours."""
    with write_transaction(conn):
        changed = conn.execute(
            "UPDATE jobs SET state='queued', lease_owner=NULL, lease_token=NULL, lease_until=NULL, "
            "not_before=?, updated_at=? WHERE id=? AND lease_token=? AND state='running'",
            (None if not_before is None else utc_text(not_before), utc_text(now), job_id, token),
        ).rowcount
        if changed:
            conn.execute("UPDATE segments SET state='pending' WHERE job_id=? AND state='running'", (job_id,))
    return changed == 1


def retry_leaner(
    conn: sqlite3.Connection, job_id: str, token: str, now: float, *, not_before: float | None = None
) -> Requeued | None:
    """Return our job after a caught out-of-memory: attempt + 1, no crash on the segment, so never poison.

    After the last attempt the job fails with `out_of_memory`. None when the job is no longer ours.
    """
    with write_transaction(conn):
        row = conn.execute(
            "SELECT id, engine, attempt FROM jobs WHERE id=? AND lease_token=? AND state='running'",
            (job_id, token),
        ).fetchone()
        if row is None:
            return None
        conn.execute("UPDATE segments SET state='pending' WHERE job_id=? AND state='running'", (job_id,))
        return _return_or_fail(conn, row, now, code="out_of_memory", poison=False, not_before=not_before)


def requeue_owner(
    conn: sqlite3.Connection, owner: str, now: float, *, crashed: bool = True, counted: bool = True
) -> list[Requeued]:
    """Return every job that the dead `owner` held: attempt + 1, the segment it was on has one crash more.

    A job fails with `worker_died`, generation row included, when its attempts are used up (MAX_ATTEMPTS, one
    more for each segment finished) or when one segment has POISON_CRASHES. Cancelled ones end as cancelled.
    `crashed` False: we ended the worker ourselves, which says nothing against the segment. `counted` False:
    and nothing against the job either (a stop, a restart that a person asked for).
    """
    return _requeue(conn, "lease_owner=?", (owner,), now, crashes=int(crashed), tries=int(counted))


def expire_leases(
    conn: sqlite3.Connection,
    now: float,
    alive: Collection[str] = (),
    holding: Collection[tuple[str, str]] = (),
) -> list[Requeued]:
    """The backstop by time: the same for leases that ran out. `alive` owners are known to beat and keep
    theirs (the wall clock may have jumped); of `holding` (owner, job) the owner keeps this job only, so that
    one whose end it could not write does not run for ever."""
    marks = ",".join("?" * len(alive))
    where = f"lease_until<? AND lease_owner NOT IN ({marks})" + " AND NOT (lease_owner=? AND id=?)" * len(
        holding
    )
    pairs = (part for pair in holding for part in pair)
    return _requeue(conn, where, (utc_text(now), *alive, *pairs), now)


def requeue_running(conn: sqlite3.Connection, now: float) -> list[Requeued]:
    """The same for all: at the supervisor's start nobody can hold a job, every earlier child is dead.
    That the whole house fell (power, kill -9) is charged to the job, not to the segment in hand."""
    return _requeue(conn, "1", (), now, crashes=0)


def _requeue(
    conn: sqlite3.Connection,
    where: str,
    params: tuple[object, ...],
    now: float,
    *,
    crashes: int = 1,
    tries: int = 1,
) -> list[Requeued]:
    held_jobs = f"FROM jobs INDEXED BY jobs_active WHERE {ACTIVE} AND state='running' AND {where}"
    # A look without the write lock: nothing to return is the rule, each few seconds.
    if conn.execute(f"SELECT 1 {held_jobs} LIMIT 1", params).fetchone() is None:
        return []
    returned: list[Requeued] = []
    with write_transaction(conn):
        for row in conn.execute(
            f"SELECT id, engine, attempt, cancel_requested_at {held_jobs} ORDER BY created_at",
            params,
        ).fetchall():
            hit = conn.execute(
                "UPDATE segments SET state='pending', attempt=attempt+?, error_code='worker_died' "
                "WHERE job_id=? AND state='running' RETURNING attempt",
                (crashes, row["id"]),
            ).fetchall()
            if row["cancel_requested_at"] is not None:
                end_in_transaction(conn, row["id"], Outcome("cancelled", error_code="cancelled"), now)
                returned.append(
                    Requeued(row["id"], row["engine"], row["attempt"], failed=True, code="cancelled")
                )
                continue
            poison = any(crash["attempt"] >= POISON_CRASHES for crash in hit)
            returned.append(_return_or_fail(conn, row, now, code="worker_died", poison=poison, tries=tries))
    return returned


def _return_or_fail(
    conn: sqlite3.Connection,
    row: sqlite3.Row,
    now: float,
    *,
    code: str,
    poison: bool,
    tries: int = 1,
    not_before: float | None = None,
) -> Requeued:
    job_id, engine, attempt = row["id"], row["engine"], row["attempt"]
    if poison or (tries and attempt >= MAX_ATTEMPTS + _finished(conn, job_id)):
        end_in_transaction(conn, job_id, Outcome("failed", error_code=code), now)
        return Requeued(job_id, engine, attempt, failed=True, poison=poison, code=code)
    conn.execute(
        "UPDATE jobs SET state='queued', attempt=attempt+?, lease_owner=NULL, lease_token=NULL, "
        "lease_until=NULL, not_before=?, updated_at=? WHERE id=?",
        (tries, None if not_before is None else utc_text(not_before), utc_text(now), job_id),
    )
    return Requeued(job_id, engine, attempt + tries)


def _finished(conn: sqlite3.Connection, job_id: str) -> int:
    """Segments that are done: a text of hours outlives more deaths than one that never gets anywhere."""
    query = "SELECT count(*) FROM segments WHERE job_id=? AND state='done'"
    return int(conn.execute(query, (job_id,)).fetchone()[0])
