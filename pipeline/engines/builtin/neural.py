"""English by hibari: one ONNX session on one thread, without a memory arena. Lazy imports.

onnxruntime's arena keeps the largest request for ever: over 500 utterances of 1 to 60 words RssAnon grew
from 145 to 323 MB with it and stayed below 240 MB without arena and pattern planning, at the same speed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.engines.base import EngineUnavailable, F32Mono
from pipeline.engines.builtin.stretch import change_tempo

# The model follows `speed` from 0.25 to about 1.6 (measured 0.249 and 1.6); then its phonemes, a frame each
# at least, cannot get shorter: 1.8 at 2 and 2.1 at 4.
_FASTEST = 1.5


class NeuralEnglish:
    """Voice "heart". Raises EngineUnavailable(engine_failed) when hibari or its model is not there."""

    def __init__(self) -> None:
        if importlib.util.find_spec("hibari") is None:
            raise EngineUnavailable("engine_failed", engine="builtin", reason="hibari is not installed")
        from hibari import Hibari, dsp
        from hibari.g2p import G2P
        from hibari.g2p import oov as hibari_oov
        from hibari.voices import voice_path

        path = voice_path("heart", download_missing=False)
        self._hibari: Any = Hibari.__new__(Hibari)  # its __init__ would make a session of its own
        self._forget_windows = getattr(dsp._ola_norm, "cache_clear", lambda: None)
        self._hibari.voice, self._hibari.model_path = "heart", path
        self._hibari.sess = _session(path)
        self._hibari.vocab = _vocabulary()
        oov_path = os.path.join(hibari_oov.ASSETS, "oov.onnx")
        self._hibari._g2p = G2P(oov=hibari_oov.OOV(oov_path, session=_session(oov_path)))

    def speak(self, text: str, speed: float, seed: int) -> Iterator[tuple[F32Mono, bool]]:
        """One 24 kHz signal for each sentence, and whether a full stop (not a cut clause) ends it."""
        rng = np.random.default_rng(seed)
        own = min(speed, _FASTEST)
        for phonemes in self._hibari.phonemize(text):
            ids = self._hibari.ids(phonemes)
            signal: F32Mono = self._hibari.from_ids(ids, own, rng)
            # Windows of the last eight lengths, 150 KB each: rarely hit, and they cut the heap into pieces.
            self._forget_windows()
            yield change_tempo(signal, speed / own), phonemes.rstrip('"”’) ')[-1:] in ".!?…"


def _session(path: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _vocabulary() -> Any:
    import json

    from hibari import tts

    with open(os.path.join(tts.ASSETS, "vocab.json"), encoding="utf-8") as file:
        return json.load(file)
