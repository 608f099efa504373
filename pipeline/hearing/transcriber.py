"""A loaded Whisper: samples in, words out. faster-whisper is imported here, when it is wanted."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.codes import CosydError
from pipeline.text.language import primary

RATE = 16_000
THREADS = 2


@dataclass(frozen=True, slots=True)
class Heard:
    """`language` is a primary tag (zh, en, ..), given or detected."""

    text: str
    language: str


class Transcriber:
    """One model in memory. Not for two threads at once."""

    def __init__(self, folder: Path) -> None:
        """Load it (about a second for the tiny one). Raises CosydError(model_missing) for what cannot be
        loaded."""
        from faster_whisper import WhisperModel

        try:
            self._model: Any = WhisperModel(
                str(folder),
                device="cpu",
                compute_type="int8",
                cpu_threads=THREADS,
                num_workers=1,
                local_files_only=True,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise CosydError(
                "model_missing", reason="asr_broken", folder=str(folder), detail=str(error)[:200]
            ) from None
        self.english_only = not self._model.model.is_multilingual

    def hears(self, language: str) -> bool:
        """Whether speech in `language` can be written down; "" and "auto" stand for any."""
        tag = primary(language)
        return not tag or tag == "en" or (not self.english_only and tag in self._model.supported_languages)

    def hear(self, samples: npt.NDArray[np.float32], rate: int, language: str = "auto") -> Heard:
        """Write down mono samples. Raises CosydError(unsupported_mode) for a language it does not know."""
        import soxr

        if not self.hears(language):
            raise CosydError("unsupported_mode", mode="asr", language=language, reason="asr_language")
        mono = np.asarray(soxr.resample(samples, rate, RATE), np.float32)
        wanted = "en" if self.english_only else primary(language) or None
        pieces, info = self._model.transcribe(
            mono, language=wanted, beam_size=5, temperature=0.0, condition_on_previous_text=False
        )
        text = " ".join(" ".join(piece.text for piece in pieces).split())
        return Heard(text, str(info.language))


@functools.lru_cache(maxsize=1)
def transcriber(folder: Path) -> Transcriber:
    """The model of this process, loaded once. Raises CosydError(model_missing)."""
    return Transcriber(folder)
