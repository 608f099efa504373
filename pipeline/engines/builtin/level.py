"""Loudness and edges of a spoken part, so that parts of different speakers fit together. Pure numpy.

Signals are float32, mono, 24 kHz, shape (samples,).
"""

from __future__ import annotations

import numpy as np

from pipeline.engines.base import F32Mono
from pipeline.jobs import SAMPLE_RATE

TARGET_DBFS = -20.0
"""RMS of active speech, dB below full scale."""

PEAK = 10 ** (-1.0 / 20)
EDGE = SAMPLE_RATE * 30 // 1000
"""Silence kept before and after speech: what a crossfade between segments takes up."""

_FRAME = SAMPLE_RATE * 20 // 1000
_KNEE = 0.6
_MAX_GAIN = 10 ** (30 / 20)
_ACTIVE_DB = -45.0  # below the loudest frame this is silence; f and s stay above it


def _frame_powers(signal: F32Mono, frame: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    whole = len(signal) // frame * frame
    if not whole:
        return np.array([np.mean(np.square(signal, dtype=np.float64))] if len(signal) else [])
    return np.mean(np.square(signal[:whole].reshape(-1, frame), dtype=np.float64), axis=1)


def speech_level(signal: F32Mono) -> float:
    """RMS in dBFS of the active frames; -inf for silence.

    Gated twice as ITU-R BS.1770 does it, on 20 ms frames and unweighted: first at -60 dBFS, then 15 dB below
    the mean of what is left, so that pauses do not count.
    """
    powers = _frame_powers(signal, _FRAME)
    active = powers[powers > 1e-6]
    if not len(active):
        return float("-inf")
    active = active[active > active.mean() * 10**-1.5]
    return float(10 * np.log10(active.mean()))


def even_loudness(signal: F32Mono, target_dbfs: float = TARGET_DBFS) -> F32Mono:
    """Bring speech to the target level; peaks above -4.4 dBFS are bent so that none passes -1 dBFS."""
    level = speech_level(signal)
    if level == float("-inf"):
        return signal
    gain = min(10 ** ((target_dbfs - level) / 20), _MAX_GAIN)
    scaled = signal * np.float32(gain)
    size = np.abs(scaled)
    over = size > _KNEE
    if over.any():
        room = PEAK - _KNEE
        bent = _KNEE + room * np.tanh((size[over] - _KNEE) / room)
        scaled[over] = np.copysign(bent, scaled[over]).astype(np.float32)
    return scaled


def trim_edges(signal: F32Mono) -> F32Mono:
    """30 ms before the first and after the last active 5 ms, faded at both ends; empty for silence."""
    frame = SAMPLE_RATE * 5 // 1000
    powers = _frame_powers(signal, frame)
    if not len(powers) or powers.max() < 1e-7:
        return np.zeros(0, np.float32)
    active = np.flatnonzero(powers > powers.max() * 10 ** (_ACTIVE_DB / 10))
    start, end = int(active[0]) * frame - EDGE, (int(active[-1]) + 1) * frame + EDGE
    body = signal[max(0, start) : min(len(signal), end)]
    out = np.concatenate(
        [np.zeros(max(0, -start), np.float32), body, np.zeros(max(0, end - len(signal)), np.float32)]
    ).astype(np.float32, copy=False)
    ramp = np.linspace(0, 1, EDGE // 2, dtype=np.float32)
    out[: len(ramp)] *= ramp
    out[len(out) - len(ramp) :] *= ramp[::-1]
    return out


def silence(seconds: float) -> F32Mono:
    """Nothing, for so long."""
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)
