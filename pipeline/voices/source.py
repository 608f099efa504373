"""The recording of a voice conversion, from upload to the job's folder. Imports no engine.

It lies there as `source.flac`, written before the job's row by whoever accepts the job, and goes with the
folder (end, cancel, sweep). `pipeline.conversion` works on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.audio.files import disk_errors
from pipeline.audio.mixdown import RATE
from pipeline.audio.recording import read_recording
from pipeline.audio.speech import find_speech
from pipeline.codes import CosydError
from pipeline.voices.cut import outer
from pipeline.voices.reference import F32, MIN_SECONDS, is_silent
from pipeline.voices.registry import write_clip

T = TypeVar("T")

MAX_SECONDS = 180.0
"""A longer recording is refused: it is held whole in memory while it is decoded."""


def source_path(job_dir: Path) -> Path:
    """Where the recording of a conversion lies."""
    return job_dir / "source.flac"


def read_source(path: Path) -> tuple[F32, int]:
    """(mono samples, rate) of an uploaded recording, its timing untouched. Raises CosydError(bad_audio)."""
    recording = read_recording(path, MAX_SECONDS + 1)
    if recording.seconds > MAX_SECONDS:
        raise CosydError("bad_audio", reason="long_source", limit=MAX_SECONDS)
    activity = find_speech(recording.audio, RATE)
    if is_silent(activity):
        raise CosydError("bad_audio", reason="silent")
    spoken = outer(activity, recording.seconds).seconds
    if spoken < MIN_SECONDS:
        raise CosydError("bad_audio", reason="short", value=round(spoken, 1), limit=MIN_SECONDS)
    return _held(recording.audio), RATE


def _held(audio: F32) -> F32:
    """Turned down where it exceeds full scale: a file of floating point numbers may."""
    peak = float(np.abs(audio).max(initial=0.0))
    return audio / np.float32(peak) if peak > 1.0 else audio


def with_source(job_dir: Path, audio: npt.NDArray[np.float32], rate: int, insert: Callable[[], T]) -> T:
    """Keep the recording, then `insert` the job's row; without the row nothing stays. Raises what `insert`
    raises, CosydError(storage_full)."""
    try:
        with disk_errors():
            job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_clip(source_path(job_dir), audio, rate)
        return insert()
    except BaseException:
        shutil.rmtree(job_dir, ignore_errors=True)
        raise
