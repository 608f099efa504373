"""From loose fields to a job's row: what every door shares."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import queue
from pipeline.acceptance import accept, check_request, job_progress, params_of
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest, JobState
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.voices.catalogue import Voice
from pipeline.voices.source import source_path
from tests.unit.storekit import NOW

CONFIG = Config()
VOICES = (Voice("heart", "Heart", "builtin", ("en",)), Voice("anna", "Anna", "cosyvoice3", (), builtin=False))
FIELDS = {"text": "Hello there.", "voice": "heart", "source": "page"}


def checked(fields: dict[str, Any], root: Path, max_chars: int = 100) -> tuple[JobRequest, Voice]:
    """`check_request` over two voices."""
    return check_request(fields, VOICES, CONFIG, root, max_chars=max_chars)


@pytest.mark.parametrize("wanted", ["heart", "alloy", "", " Nova "])
def test_a_name_of_openai_or_none_means_the_default_voice(paths: StatePaths, wanted: str) -> None:
    request, voice = checked({**FIELDS, "voice": wanted}, paths.root)
    assert (request.voice, voice.id, request.mode) == ("heart", "heart", "builtin")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"text": "", "voice": 3}, "empty_text"),
        ({"text": None}, "empty_text"),
        ({"voice": 3}, "bad_value"),
        ({"voice": "nobody"}, "unknown_voice"),
        ({"text": "x" * 101}, "text_too_long"),
        ({"voice": "anna"}, "model_missing"),
        ({"mode": "zero_shot"}, "unsupported_mode"),
        ({"surprise": 1}, "bad_value"),
    ],
)
def test_what_is_wrong_has_its_code(paths: StatePaths, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(CosydError) as caught:
        checked({**FIELDS, **fields}, paths.root)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("source", "length", "lane"),
    [
        ("openai", 10, "interactive"),
        ("api", 10, "interactive"),
        ("page", 10, "page"),
        ("cli", 10, "page"),
        ("cli", CONFIG.limits.text_chars + 1, "batch"),
    ],
)
def test_a_job_is_in_its_lane_with_its_estimate(
    conn: sqlite3.Connection, paths: StatePaths, source: str, length: int, lane: str
) -> None:
    request, voice = checked({**FIELDS, "text": "x" * length, "source": source}, paths.root, max_chars=10**6)
    job = accept(conn, request, voice.engine, paths=paths, config=CONFIG, now=NOW, patience_s=float("inf"))
    row = conn.execute(
        "SELECT j.lane, j.engine, j.created_at, w.estimate_s FROM jobs j, job_work w WHERE w.job_id = j.id"
    ).fetchone()
    assert tuple(row) == (lane, "builtin", job.created_at, pytest.approx(length / 15))
    assert job_progress(conn, job.id).state == JobState.QUEUED


def test_the_recording_of_a_conversion_lies_there_before_the_row(
    conn: sqlite3.Connection, paths: StatePaths
) -> None:
    request = JobRequest(text="clip.wav", voice="anna", mode="convert", source="page", speed=2.0)
    tone = np.sin(np.arange(48_000, dtype=np.float32) / 20) * np.float32(0.3)

    def put(source: tuple[Any, int] | None, config: Config = CONFIG) -> str:
        return accept(
            conn, request, "cosyvoice3", paths=paths, config=config, now=NOW, patience_s=600, source=source
        ).id

    with pytest.raises(CosydError) as caught:
        put(None)
    assert (caught.value.code, caught.value.params) == ("bad_audio", {"reason": "empty"})
    job_id = put((tone, 24_000))
    assert source_path(paths.job_dir(queue.get_job(conn, job_id).created_at, job_id)).exists()  # type: ignore[union-attr]
    seconds = conn.execute("SELECT estimate_s FROM job_work WHERE job_id=?", (job_id,)).fetchone()[0]
    assert seconds == pytest.approx(1.0)  # two seconds, said twice as fast


def test_an_unknown_job_has_failed_and_an_ended_one_says_why(
    conn: sqlite3.Connection, paths: StatePaths
) -> None:
    error = job_progress(conn, "0" * 16).error
    assert error is not None and error.code == "not_found"
    request, voice = checked(dict(FIELDS), paths.root)
    job = accept(conn, request, voice.engine, paths=paths, config=CONFIG, now=NOW, patience_s=600)
    told = {"engine": "builtin", "reason": "no_espeak", "retry_after_s": 2.0}
    queue.fail_engine_jobs(conn, "builtin", NOW, "engine_failed", json.dumps(told))
    error = job_progress(conn, job.id).error
    assert error is not None and (error.code, error.retry_after_s) == ("engine_failed", None)
    assert error.params == {"engine": "builtin", "reason": "no_espeak"}


@pytest.mark.parametrize("column", [None, "", "{", "[1]", "3"])
def test_a_params_column_that_is_no_object_is_empty(column: str | None) -> None:
    assert params_of(column) == {}
