"""How jobs, recordings, voices and the state look as JSON (native API and page). Renders no HTML."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import queue
from pipeline.acceptance import params_of
from pipeline.clock import wall_seconds
from pipeline.codes import CODES, CosydError
from pipeline.jobs import JobState
from pipeline.messages import Language, error_text, event_text, render
from pipeline.voices.catalogue import Voice

_JOB = """
SELECT j.id, j.state, j.created_at, j.engine, j.lane, j.wait_reason, j.error_code, j.error,
       j.cancel_requested_at,
       g.voice, g.audio_seconds, g.queue_seconds, g.first_audio_seconds, g.synthesis_seconds, g.finished_at,
       g.stand_in, g.seed, g.audio_path,
       (SELECT count(*) FROM segments s WHERE s.job_id = j.id) AS total,
       (SELECT count(*) FROM segments s WHERE s.job_id = j.id AND s.state = 'done') AS done
FROM jobs j LEFT JOIN generations g ON g.job_id = j.id WHERE j.id = ?
"""

_RECORDING = (
    "id", "created_at", "finished_at", "status", "text", "language", "mode", "voice", "instruct", "seed",
    "speed", "engine", "source", "audio_seconds", "queue_seconds", "first_audio_seconds", "synthesis_seconds",
    "segments", "stand_in", "error_code",
)  # fmt: skip


def job_view(conn: sqlite3.Connection, job_id: str, language: Language) -> dict[str, Any] | None:
    """Everything the page shows of a job, or None. `queue` is set while it waits, `error` when it failed."""
    row = conn.execute(_JOB, (job_id,)).fetchone()
    if row is None:
        return None
    place = queue.position(conn, job_id) if row["state"] == JobState.QUEUED else None
    return {
        "id": row["id"],
        "state": row["state"],
        "created_at": row["created_at"],
        "engine": row["engine"],
        "lane": row["lane"],
        "voice": row["voice"],
        "stopping": row["cancel_requested_at"] is not None,
        "segments": {"done": row["done"], "total": row["total"]},
        "queue": None if place is None else {"ahead": place.ahead, "seconds_ahead": place.seconds_ahead},
        "wait": wait_view(row["wait_reason"], language),
        "audio": row["audio_path"] is not None,
        "audio_seconds": row["audio_seconds"],
        "first_audio_seconds": row["first_audio_seconds"],
        "seconds": _took(row["created_at"], row["finished_at"]),
        "seed": row["seed"],
        "stand_in": bool(row["stand_in"]),
        "error": error_view(row["error_code"], row["error"], language),
    }


def _took(created_at: str, finished_at: str | None) -> float | None:
    """Seconds from accepting to the end; None while it is not over."""
    return None if finished_at is None else max(0.0, wall_seconds(finished_at) - wall_seconds(created_at))


def error_view(code: str | None, params: str | None, language: Language) -> dict[str, Any] | None:
    """`{"code", "message"}` in the visitor's words; a code nobody knows reads as internal."""
    if not code:
        return None
    known = code if code in CODES else "internal"
    return {"code": known, "message": error_text(known, language, params_of(params))}


def wait_view(reason: str | None, language: Language) -> dict[str, Any] | None:
    """Why a queued job waits. The column holds a code, or JSON `{"code", "params"}`."""
    if not reason:
        return None
    found = params_of(reason) if reason.startswith("{") else {"code": reason}
    code = str(found.get("code", ""))
    params = found.get("params")
    params = params if isinstance(params, dict) else {}
    if params and code in CODES:
        return {"code": code, "message": error_text(code, language, params)}
    return {"code": code, "message": render(f"wait.{code}", language, params)}


def recording_view(row: Any, language: Language) -> dict[str, Any]:
    """One row of the history. `error` is a sentence; the audio lies at /api/jobs/{id}/audio when `audio`."""
    found = {name: getattr(row, name) for name in _RECORDING}
    found["audio"] = bool(row.audio_path)
    found["stand_in"] = bool(row.stand_in)
    found["seconds"] = _took(row.created_at, row.finished_at)
    found["error"] = error_view(row.error_code, row.error, language)
    return found


def voice_view(voice: Voice, modes: Sequence[str] = (), facts: Mapping[str, Any] = {}) -> dict[str, Any]:
    """A voice as the APIs list it; `id` and `name` are what OpenAI clients read. `modes`: what it can be
    asked here; `facts` of a cloned one: `created_at`, `seconds`, `source`, `consent`."""
    return {
        "id": voice.id,
        "name": voice.name,
        "engine": voice.engine,
        "languages": list(voice.languages),
        "builtin": voice.builtin,
        "transcript": voice.transcript,
        "tags": list(voice.tags),
        "modes": list(modes),
        **facts,
    }


def cloning_view(trouble: CosydError | None, language: Language) -> dict[str, Any]:
    """Whether voices can be added here; else one sentence with the command that mends it."""
    if trouble is None:
        return {"available": True, "code": None, "message": None}
    message = error_text(trouble.code, language, trouble.params)
    return {"available": False, "code": trouble.code, "message": message}


def voice_notice(voice: Voice, language: Language) -> str | None:
    """What a person should know of a new voice; None when there is nothing."""
    if voice.builtin or voice.transcript:
        return None
    return render("voice.no_transcript", language, {})


def event_view(
    kind: str, at: str, level: str | None, params: Mapping[str, Any], language: Language
) -> dict[str, Any]:
    """One automatic act with its sentence."""
    return {"at": at, "kind": kind, "level": level, "message": event_text(kind, language, params)}
