"""Changes the tempo of speech without its pitch: WSOLA. Pure numpy.

W. Verhelst, M. Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for high quality
time-scale modification of speech", ICASSP 1993. Used where a synthesiser's own speed control ends.
"""

from __future__ import annotations

import numpy as np

from pipeline.engines.base import F32Mono
from pipeline.jobs import SAMPLE_RATE

_HOP = SAMPLE_RATE * 15 // 1000  # output step; frames are twice as long, their Hann windows add up to one
_SEEK = SAMPLE_RATE * 8 // 1000  # a frame may be taken from this far off: a period of a low voice (65 Hz)


def change_tempo(signal: F32Mono, factor: float) -> F32Mono:
    """`signal` (samples,) at `factor` times the tempo; len(signal) / factor samples within a hop."""
    frame = 2 * _HOP
    if abs(factor - 1) < 0.01 or len(signal) < 2 * frame:
        return signal
    steps = max(1, round(len(signal) / factor / _HOP))
    padded = np.concatenate(
        [np.zeros(_SEEK, np.float32), signal, np.zeros(frame + 2 * _SEEK + _HOP, np.float32)]
    )
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)).astype(np.float32)
    out = np.zeros((steps + 1) * _HOP, np.float32)
    last = len(padded) - frame - _HOP
    taken = _SEEK
    for step in range(steps):
        wanted = min(_SEEK + round(step * _HOP * factor), last - 2 * _SEEK)
        if step:
            # The frame that would follow the one just written is what the next should look like.
            natural = padded[min(taken + _HOP, last) :][:frame]
            low = max(0, wanted - _SEEK)
            likeness = np.correlate(padded[low : low + 2 * _SEEK + frame], natural, "valid")
            taken = low + int(np.argmax(likeness))
        else:
            taken = wanted
        out[step * _HOP : step * _HOP + frame] += padded[taken : taken + frame] * window
    return out
