"""How a request becomes a job, the same at every door: what it asks for, then its row (and recording).

Called by `ui.jobs` and `daemon.cli.speaking`. Knows neither HTTP nor terminals and imports no engine.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import queue
from pipeline.audio.follow import JobProgress
from pipeline.clock import utc_text
from pipeline.codes import CODES, CosydError
from pipeline.jobs import JobRequest, choose_lane, new_job_id, parse_request
from pipeline.model_files import model_ready, require_model
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.voices.catalogue import Voice, find_voice
from pipeline.voices.choose import fit_mode
from pipeline.voices.reference import F32
from pipeline.voices.source import with_source


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job that is in the database. `created_at` leads to its files."""

    id: str
    created_at: str
    engine: str
    voice: str


def check_request(
    fields: Mapping[str, Any], voices: Iterable[Voice], config: Config, root: Path, *, max_chars: int
) -> tuple[JobRequest, Voice]:
    """The validated request, in the mode it will be spoken in, and its voice (OpenAI's names become the
    starter or default one). `root` is the state folder. Nothing is written.

    Raises CosydError: `empty_text`, `bad_value`, `text_too_long`, `unknown_voice`, `unsupported_mode`,
    `model_missing`.
    """
    if fields.get("text") in (None, ""):  # the first thing to say, whatever else is wrong
        raise CosydError("empty_text")
    wanted = fields.get("voice", "")
    if not isinstance(wanted, str):
        raise CosydError("bad_value", field="voice", reason="not_text")
    voice = find_voice(wanted, voices, config.web.default_voice, lambda: model_ready(root))
    request = parse_request({**fields, "voice": voice.id}, max_chars=max_chars)
    return fit_mode(request, voice, lambda: require_model(root)), voice


def accept(
    conn: sqlite3.Connection,
    request: JobRequest,
    engine: str,
    *,
    paths: StatePaths,
    config: Config,
    now: float,
    patience_s: float,
    source: tuple[F32, int] | None = None,
) -> Accepted:
    """Put a checked request into the queue of `engine`. Committed when this returns. `source` is the
    recording of a conversion (mono samples, rate); it lies in the job's folder before the row is there.

    Raises CosydError: `queue_full(retry_after_s)`, `storage_full`, `storage_busy`, and `bad_audio` for a
    conversion of nothing.
    """
    if request.mode == "convert" and source is None:
        raise CosydError("bad_audio", reason="empty")
    job_id, created_at = new_job_id(), utc_text(now)

    def submit() -> str:
        return queue.submit(
            conn,
            request,
            engine=engine,
            lane=choose_lane(
                request,
                interactive_chars=config.limits.interactive_chars,
                text_chars=config.limits.text_chars,
            ),
            now=now,
            config=config,
            patience_s=patience_s,
            job_id=job_id,
            estimate_s=None if source is None else len(source[0]) / source[1] / request.speed,
        )

    if source is None:
        submit()
    else:
        with_source(paths.job_dir(created_at, job_id), *source, submit)
    return Accepted(job_id, created_at, engine, request.voice)


def params_of(text: str | None) -> dict[str, Any]:
    """A params column; {} when it is empty or no object."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def job_progress(conn: sqlite3.Connection, job_id: str) -> JobProgress:
    """What the follower of a job asks the database. An unknown one has failed with `not_found`."""
    row = conn.execute(
        "SELECT state, error_code, error, (SELECT count(*) FROM segments WHERE job_id = jobs.id) AS total"
        " FROM jobs WHERE id = ?",
        (job_id,),
    ).fetchone()
    if row is None:
        return JobProgress("failed", None, CosydError("not_found"))
    return JobProgress(row["state"], row["total"] or None, _error_of(row["error_code"], row["error"]))


def _error_of(code: str | None, params: str | None) -> CosydError | None:
    """The error of a job's row. When to come again was true when it ended, not now."""
    if not code:
        return None
    found = {k: v for k, v in params_of(params).items() if k != "retry_after_s"}
    return CosydError(code if code in CODES else "internal", **found)
