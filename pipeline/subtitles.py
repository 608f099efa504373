"""Subtitles of a recording from its rows: which characters were spoken when.

Segments keep their places and lengths for as long as the job's row stays (30 days); after that the times are
shared out over the recording by expected length.
"""

from __future__ import annotations

import sqlite3

from pipeline import history
from pipeline.audio.join import OVERLAP
from pipeline.codes import CosydError
from pipeline.jobs import SAMPLE_RATE
from pipeline.text.subtitles import Cue, cues_of, srt, webvtt

FORMATS = {"srt": ("application/x-subrip", srt), "vtt": ("text/vtt", webvtt)}


def cues(conn: sqlite3.Connection, generation_id: str) -> list[Cue]:
    """The cues of a finished recording. Raises CosydError(not_found)."""
    generation = history.get(conn, generation_id)
    if generation is None or generation.status != "done" or not generation.audio_seconds:
        raise CosydError("not_found")
    rows = conn.execute(
        "SELECT start_char, end_char, samples FROM segments WHERE job_id=? ORDER BY idx", (generation.job_id,)
    ).fetchall()
    spoken = [row for row in rows if row["samples"] > 0]
    if len(spoken) != generation.segments or not spoken or generation.mode == "convert":
        return cues_of(generation.text, 0.0, generation.audio_seconds)
    found: list[Cue] = []
    at = 0
    for row in spoken:
        # Each segment begins under the last 30 ms of the one before (pipeline.audio.join).
        start = max(0, at - OVERLAP) if at else 0
        at = start + row["samples"]
        text = generation.text[row["start_char"] : row["end_char"]]
        found += cues_of(text, start / SAMPLE_RATE, at / SAMPLE_RATE)
    return found


def subtitles(conn: sqlite3.Connection, generation_id: str, format: str) -> str:
    """A whole file in `srt` or `vtt`. Raises CosydError(not_found)."""
    return FORMATS[format][1](cues(conn, generation_id))
