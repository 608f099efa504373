"""Accepts jobs, or says when to come again; and how long the line is. Estimates are in seconds of speech.

The rule (CONTRACTS 3): a job is refused only when the estimated wait exceeds the client's patience or the
lane already holds its limit in seconds of speech, and never while few short requests wait. Check and insert
are one transaction, so that two doors cannot both take the last place.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import sqlite3
import statistics
from pathlib import Path

from pipeline.clock import utc_text, wall_seconds
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, Lane, draw_seed, estimate_seconds, new_job_id
from pipeline.profile import Config
from pipeline.queue.values import ACTIVE, EngineQueue, Position
from pipeline.store.db import RETRY_AFTER_FULL_S, write_transaction

DEFAULT_RTF = 0.5
"""Seconds of work for a second of speech, before anything was measured."""

RTF_SAMPLES = 20
RETRY_MIN_S, RETRY_MAX_S = 1.0, 600.0

_LEFT = "max(w.estimate_s - w.spoken_s, 0)"


def submit(
    conn: sqlite3.Connection,
    request: JobRequest,
    *,
    engine: str,
    lane: Lane,
    now: float,
    config: Config,
    patience_s: float = math.inf,
    job_id: str | None = None,
    free_bytes: int | None = None,
    priority: int = 0,
    estimate_s: float | None = None,
) -> str:
    """Queue `request` for `engine` and return the job's id; committed when this returns.

    Draws the seed when there is none. `estimate_s` are seconds of speech where the text does not tell them (a
    conversion). `free_bytes` of the state folder's disk is looked up when not given.
    Raises CosydError: `queue_full(wait_s, retry_after_s)`, `storage_full(free_bytes, needed_bytes)`,
    `storage_busy`.
    """
    free = _free_bytes(conn) if free_bytes is None else free_bytes
    if free is not None and free < config.limits.min_free_bytes:
        raise CosydError(
            "storage_full",
            retry_after_s=RETRY_AFTER_FULL_S,
            reason="low_space",
            free_bytes=free,
            needed_bytes=config.limits.min_free_bytes,
        )
    if request.seed is None:
        request = dataclasses.replace(request, seed=draw_seed())
    job_id = job_id or new_job_id()
    if estimate_s is None:
        estimate_s = estimate_seconds(request.text, request.speed)
    with write_transaction(conn):
        wait_s = _check_room(conn, request, engine, lane, config, patience_s)
        # A wait that we ourselves foresaw must not run into the deadline.
        deadline = now + config.timeout_factor * config.deadlines.queue_s + 2 * wait_s
        conn.execute(
            "INSERT INTO jobs (id, created_at, state, engine, lane, source, client, owner, priority, "
            "request, deadline_at, updated_at) VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                job_id,
                utc_text(now),
                engine,
                lane.name,
                request.source,
                request.client,
                request.owner,
                priority,
                request.to_json(),
                utc_text(deadline) if math.isfinite(deadline) else None,
                utc_text(now),
            ),
        )
        conn.execute(
            "INSERT INTO job_work (job_id, engine, lane, chars, estimate_s) VALUES (?, ?, ?, ?, ?)",
            (job_id, engine, lane.name, len(request.text), estimate_s),
        )
    return job_id


def _check_room(
    conn: sqlite3.Connection, request: JobRequest, engine: str, lane: Lane, config: Config, patience_s: float
) -> float:
    """The estimated wait in seconds. Raises CosydError(queue_full)."""
    by_lane = {lane.name: 0.0 for lane in Lane}
    short = 0
    for row in conn.execute(
        f"SELECT lane, sum({_LEFT}) AS left_s, sum(chars<?) AS short FROM job_work w "
        "WHERE engine=? GROUP BY lane",
        (config.limits.interactive_chars, engine),
    ):
        by_lane[row["lane"]] = row["left_s"]
        short += row["short"]
    rtf = estimated_rtf(conn, engine)
    wait_s = _wait_s(by_lane, lane, config.longest_segment_s, rtf)
    if len(request.text) < config.limits.interactive_chars and short < config.limits.short_requests_min:
        return wait_s
    excess_s = (by_lane[lane.name] - config.queue_max_s) * rtf
    if by_lane[lane.name] >= config.queue_max_s or wait_s > patience_s:
        retry = max(excess_s, wait_s - patience_s if math.isfinite(patience_s) else 0.0)
        raise CosydError(
            "queue_full",
            retry_after_s=float(math.ceil(min(max(retry, RETRY_MIN_S), RETRY_MAX_S))),
            wait_s=round(wait_s, 1),
        )
    return wait_s


def _wait_s(left_by_lane: dict[str, float], lane: Lane, longest_segment_s: float, rtf: float) -> float:
    """Work of this lane and the higher ones, and one segment of a lower one that may be running."""
    before = sum(left_by_lane[other.name] for other in Lane if other <= lane)
    below = sum(left_by_lane[other.name] for other in Lane if other > lane)
    return (before + min(below, longest_segment_s)) * rtf


def estimated_rtf(conn: sqlite3.Connection, engine: str) -> float:
    """Median real-time factor of the engine's latest recordings; DEFAULT_RTF before there are any."""
    rows = conn.execute(
        "SELECT rtf FROM generations WHERE engine=? AND status='done' ORDER BY seq DESC LIMIT ?",
        (engine, RTF_SAMPLES),
    ).fetchall()
    measured = [row["rtf"] for row in rows if row["rtf"] is not None]
    return statistics.median(measured) if measured else DEFAULT_RTF


def position(conn: sqlite3.Connection, job_id: str) -> Position | None:
    """Where a job stands: (0, 0.0) when it runs, None when it is over or unknown.

    Counted as if clients did not take turns, so it is rather too long than too short.
    """
    job = conn.execute(
        f"SELECT engine, lane, created_at, state FROM jobs WHERE id=? AND {ACTIVE}",
        (job_id,),
    ).fetchone()
    if job is None:
        return None
    if job["state"] == "running":
        return Position(0, 0.0)
    lane = Lane[job["lane"]]
    higher = [other.name for other in Lane if other < lane]
    marks = ",".join("?" * len(higher))
    row = conn.execute(
        f"SELECT count(*) AS ahead, coalesce(sum({_LEFT}), 0) AS left_s FROM jobs j "
        f"LEFT JOIN job_work w ON w.job_id=j.id WHERE j.engine=? AND {ACTIVE} "
        "AND j.cancel_requested_at IS NULL AND j.id!=? AND (j.state='running' "
        f"OR j.lane IN ({marks}) OR (j.lane=? AND (j.created_at, j.id)<(?, ?)))",
        (job["engine"], job_id, *higher, job["lane"], job["created_at"], job_id),
    ).fetchone()
    return Position(row["ahead"], row["left_s"] * estimated_rtf(conn, job["engine"]))


def queue_stats(conn: sqlite3.Connection, now: float) -> dict[str, EngineQueue]:
    """What waits and runs for each engine that has anything; cancelled ones that still wait are left out."""
    found: dict[str, EngineQueue] = {}
    seconds = {
        row["engine"]: row["left_s"]
        for row in conn.execute(f"SELECT engine, sum({_LEFT}) AS left_s FROM job_work w GROUP BY engine")
    }
    for row in conn.execute(
        "SELECT engine, count(*) FILTER (WHERE state='queued') AS queued, "
        "count(*) FILTER (WHERE state='running') AS running, "
        "min(created_at) FILTER (WHERE state='queued') AS oldest "
        f"FROM jobs INDEXED BY jobs_active WHERE {ACTIVE} "
        "AND (state='running' OR cancel_requested_at IS NULL) GROUP BY engine"
    ):
        if row["queued"] or row["running"]:
            age = None if row["oldest"] is None else max(0.0, now - wall_seconds(row["oldest"]))
            found[row["engine"]] = EngineQueue(
                row["queued"], row["running"], age, seconds.get(row["engine"]) or 0.0
            )
    return found


def _free_bytes(conn: sqlite3.Connection) -> int | None:
    """Free bytes where the database lies; None (unknown) is not acted on."""
    file = conn.execute("PRAGMA database_list").fetchone()[2]
    try:
        return shutil.disk_usage(Path(file).parent).free if file else None
    except OSError:
        return None
