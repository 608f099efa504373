"""Rows of `jobs` as values, and the small reads and writes that belong to no other part."""

from __future__ import annotations

import sqlite3

from pipeline.jobs import JobState, Lane, request_from_json
from pipeline.queue.values import Job
from pipeline.store.db import write_transaction

JOB_COLUMNS = (
    "id, created_at, state, engine, lane, source, client, owner, priority, request, attempt, not_before, "
    "deadline_at, cancel_requested_at, lease_owner, lease_until, wait_reason, updated_at, error_code, error"
)


def job_from_row(row: sqlite3.Row) -> Job:
    """The value of a row that has JOB_COLUMNS. Raises CosydError(bad_value) for a request we never wrote."""
    fields = {name: row[name] for name in JOB_COLUMNS.split(", ")}
    fields["state"] = JobState(fields["state"])
    fields["lane"] = Lane[fields["lane"]]
    fields["request"] = request_from_json(fields["request"]) if fields["request"] else None
    return Job(**fields)


def get_job(conn: sqlite3.Connection, job_id: str) -> Job | None:
    """The job, or None when there is none of that id."""
    row = conn.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id=?", (job_id,)).fetchone()
    return None if row is None else job_from_row(row)


def set_wait_reason(conn: sqlite3.Connection, engine: str, reason: str | None) -> int:
    """Say why the queued jobs of `engine` wait (None: no reason any more); the number of rows changed.

    Reads first, so that saying the same again each tick takes no write lock.
    """
    where = "engine=? AND state='queued' AND wait_reason IS NOT ?"
    if conn.execute(f"SELECT 1 FROM jobs WHERE {where} LIMIT 1", (engine, reason)).fetchone() is None:
        return 0
    with write_transaction(conn):
        return conn.execute(f"UPDATE jobs SET wait_reason=? WHERE {where}", (reason, engine, reason)).rowcount
