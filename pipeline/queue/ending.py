"""Closes a job: its generation row, its final state and the emptied request, in one transaction.

Exactly one generation row for each job, whoever ends it: the worker (with its token), the supervisor
(deadline, FAILED engine, death of workers). Failed and cancelled ones are rows too.
"""

from __future__ import annotations

import json
import math
import sqlite3

from pipeline.clock import utc_text, wall_seconds
from pipeline.jobs import JobRequest, request_from_json
from pipeline.profile import Config
from pipeline.queue.values import ACTIVE, Outcome
from pipeline.store.cjk import search_text
from pipeline.store.db import write_transaction

ERROR_CHARS = 4000
"""`error` is the JSON of the code's params: long enough never to be cut in practice."""


def end_job(
    conn: sqlite3.Connection, job_id: str, outcome: Outcome, now: float, token: str | None = None
) -> bool:
    """End the job. False when there was nothing to end: unknown, already over, or `token` is not its lease's.

    Without a token the caller is the supervisor, which may end queued and running jobs alike.
    """
    with write_transaction(conn):
        return end_in_transaction(conn, job_id, outcome, now, token)


def end_overdue(conn: sqlite3.Connection, now: float, config: Config) -> list[str]:
    """End queued jobs that were cancelled, or never begun before their deadline; the ids.

    A job that has begun and gave way is not overdue: its listener already hears it. The deadline was fixed
    at submit; one without a deadline gets `config`'s, counted from its acceptance.
    """
    patience_s = config.timeout_factor * config.deadlines.queue_s
    oldest = utc_text(now - patience_s) if math.isfinite(patience_s) else ""
    at = {"now": utc_text(now), "oldest": oldest}
    query = (
        f"SELECT id, cancel_requested_at FROM jobs INDEXED BY jobs_active WHERE {ACTIVE} "
        "AND state='queued' AND (cancel_requested_at IS NOT NULL OR ("
        "coalesce(deadline_at<:now, created_at<:oldest) AND NOT EXISTS "
        "(SELECT 1 FROM segments WHERE job_id=jobs.id AND state='done')))"
    )
    if conn.execute(f"{query} LIMIT 1", at).fetchone() is None:
        return []
    ended = []
    with write_transaction(conn):
        for row in conn.execute(query, at).fetchall():
            cancelled = row["cancel_requested_at"] is not None
            outcome = Outcome("cancelled", "cancelled") if cancelled else Outcome("failed", "deadline")
            if end_in_transaction(conn, row["id"], outcome, now):
                ended.append(row["id"])
    return ended


def fail_engine_jobs(
    conn: sqlite3.Connection, engine: str, now: float, code: str, error: str | None = None
) -> list[str]:
    """End every queued job of an engine that is FAILED, with `code`; the ids."""
    waiting = "FROM jobs WHERE engine=? AND state='queued'"
    if conn.execute(f"SELECT 1 {waiting} LIMIT 1", (engine,)).fetchone() is None:
        return []
    outcome = Outcome("failed", code, error)
    with write_transaction(conn):
        rows = conn.execute(f"SELECT id {waiting}", (engine,)).fetchall()
        return [row["id"] for row in rows if end_in_transaction(conn, row["id"], outcome, now)]


def request_cancel(conn: sqlite3.Connection, job_id: str, now: float) -> bool:
    """Ask for the end of a job; true for one that is not over, also when it was asked before.

    A queued one is ended by `end_overdue` or the next claimer's refusal, a running one by its worker.
    """
    with write_transaction(conn):
        changed = conn.execute(
            f"UPDATE jobs SET cancel_requested_at=coalesce(cancel_requested_at, ?) WHERE id=? AND {ACTIVE}",
            (utc_text(now), job_id),
        ).rowcount
    return changed == 1


def end_in_transaction(
    conn: sqlite3.Connection, job_id: str, outcome: Outcome, now: float, token: str | None = None
) -> bool:
    """`end_job` inside the caller's write transaction."""
    held = ACTIVE if token is None else "state='running' AND lease_token=:token"
    job = conn.execute(
        f"SELECT * FROM jobs WHERE id=:id AND {held}", {"id": job_id, "token": token}
    ).fetchone()
    if job is None:
        return False
    work = conn.execute("SELECT * FROM job_work WHERE job_id=?", (job_id,)).fetchone()
    segments = conn.execute("SELECT count(*) FROM segments WHERE job_id=?", (job_id,)).fetchone()[0]
    row = _generation(job, work, segments, outcome, now)
    cursor = conn.execute(
        f"INSERT INTO generations ({', '.join(row)}) VALUES ({', '.join(':' + name for name in row)})", row
    )
    conn.execute(
        "INSERT INTO generations_fts (rowid, words) VALUES (?, ?)",
        (cursor.lastrowid, search_text(str(row["text"]))),
    )
    conn.execute(
        "UPDATE jobs SET state=?, request='', lease_owner=NULL, lease_token=NULL, lease_until=NULL, "
        "wait_reason=NULL, updated_at=?, error_code=?, error=? WHERE id=?",
        (outcome.status, utc_text(now), outcome.error_code, row["error"], job_id),
    )
    # The text of the pieces goes with the request: what was said is stored once.
    conn.execute("UPDATE segments SET text='' WHERE job_id=?", (job_id,))
    conn.execute("DELETE FROM job_work WHERE job_id=?", (job_id,))
    return True


def _request_of(job: sqlite3.Row) -> JobRequest:
    try:
        return request_from_json(job["request"])
    except Exception:
        # A request that no reader of this version understands must still be possible to end.
        try:
            text = str(json.loads(job["request"]).get("text", ""))
        except (ValueError, AttributeError):
            text = ""
        return JobRequest(text=text, voice="", source=job["source"], client=job["client"], owner=job["owner"])


def _generation(
    job: sqlite3.Row, work: sqlite3.Row | None, segments: int, outcome: Outcome, now: float
) -> dict[str, object]:
    request = _request_of(job)
    accepted = wall_seconds(job["created_at"])

    def since(text: str | None) -> float | None:
        return None if text is None else max(0.0, wall_seconds(text) - accepted)

    first_audio = since(work["first_audio_at"]) if work is not None else None
    if outcome.first_audio_at is not None and first_audio is None:
        first_audio = max(0.0, outcome.first_audio_at - accepted)
    claimed = since(work["claimed_at"]) if work is not None else None
    # One that was never claimed has waited until its end.
    waited = max(0.0, now - accepted) if claimed is None else claimed
    synthesis = outcome.synthesis_seconds
    if synthesis is None and work is not None and work["synthesis_s"] > 0:
        synthesis = work["synthesis_s"]
    audio_s = outcome.audio_seconds
    return {
        "id": job["id"],
        "job_id": job["id"],
        "created_at": job["created_at"],
        "finished_at": utc_text(now),
        "status": outcome.status,
        "text": request.text,
        "language": outcome.language or request.language,
        "mode": request.mode,
        "voice": request.voice,
        "instruct": request.instruct,
        "seed": request.seed or 0,
        "speed": request.speed,
        "engine": job["engine"],
        "model": outcome.model,
        "device": outcome.device,
        "dtype": outcome.dtype,
        "profile": outcome.profile,
        "source": job["source"],
        "client": job["client"],
        "owner": job["owner"],
        "audio_path": outcome.audio_path,
        "audio_format": outcome.audio_format,
        "audio_seconds": audio_s,
        "queue_seconds": waited,
        "first_audio_seconds": first_audio,
        "synthesis_seconds": synthesis,
        "rtf": synthesis / audio_s if synthesis is not None and audio_s else None,
        "peak_rss_bytes": outcome.peak_rss_bytes,
        "peak_vram_bytes": outcome.peak_vram_bytes,
        "segments": segments,
        "retries": job["attempt"] - 1 + outcome.retakes,
        "stand_in": int(outcome.stand_in),
        "degraded": int(outcome.degraded),
        "error_code": outcome.error_code,
        "error": None if outcome.error is None else outcome.error[:ERROR_CHARS],
    }
