"""Blocks of samples to one channel at 24 kHz (soxr), with what was seen on the way. Memory is bounded.

Channels are mixed only where they agree: the mean of channels that run against each other, or a little apart,
cancels or combs the voice. So the loudest channel is taken, and those that correlate with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.audio.decode import Stream

F32 = npt.NDArray[np.float32]

RATE = 24_000
AGREE = 0.9
"""Channels whose correlation with the loudest is at least this are one recording."""
_FULL = 0.985
_FLAT_S = 0.25e-3
"""A top that stays level for so long was cut off, at whatever level it stands now."""


class NotFinite(Exception):
    """A sample is no number."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """`mono` at 24 kHz; `seconds` as decoded; `clipped`, the share of samples at the end of the scale or on
    a flat top; `more` when the recording goes on after what was asked for."""

    mono: F32
    seconds: float
    clipped: float
    more: bool


def mix(stream: Stream, seconds: float) -> Mixed:
    """Everything of `stream` up to `seconds`. Raises NotFinite, and what the stream raises."""
    import soxr

    rate, channels = stream.rate, stream.channels
    resampler = soxr.ResampleStream(rate, RATE, channels, dtype="float32", quality="HQ")
    out = np.empty((math.ceil(seconds * RATE) + RATE, channels), np.float32)
    tops = _Tops(rate, channels, stream.exact)
    filled, frames, most = 0, 0, int(seconds * rate)

    def keep(block: F32) -> None:
        nonlocal filled
        block = block[: len(out) - filled]
        out[filled : filled + len(block)] = block
        filled += len(block)

    for block in stream.blocks:
        if not np.isfinite(block).all():
            raise NotFinite
        frames += len(block)
        tops.look(block)
        keep(resampler.resample_chunk(block))
    keep(resampler.resample_chunk(np.zeros((0, channels), np.float32), last=True))
    wide = out[:filled]
    if not np.isfinite(wide).all():
        raise NotFinite
    chosen = agreeing(wide)
    mono = np.ascontiguousarray(wide[:, chosen].mean(axis=1, dtype=np.float32))
    return Mixed(mono, frames / rate, tops.share(chosen), frames >= most)


def agreeing(wide: F32) -> list[int]:
    """The channels [n, channels] that are one recording: the loudest, and those that agree with it."""
    channels = wide.shape[1]
    if channels == 1 or not len(wide):
        return list(range(channels))
    products = np.zeros((channels, channels))
    centre = wide.mean(axis=0, dtype=np.float64)
    for at in range(0, len(wide), RATE * 5):
        block = wide[at : at + RATE * 5].astype(np.float64) - centre
        products += block.T @ block
    powers = np.diag(products)
    loudest = int(powers.argmax())
    if powers[loudest] <= 0:
        return list(range(channels))
    scale = np.sqrt(np.maximum(powers * powers[loudest], 1e-300))
    return [c for c in range(channels) if c == loudest or products[c, loudest] / scale[c] >= AGREE]


class _Tops:
    """Counts, for each channel, samples that were cut off at the top."""

    def __init__(self, rate: int, channels: int, exact: bool) -> None:
        self._run = max(3, math.ceil(_FLAT_S * rate))
        self._exact = exact
        self._frames = 0
        self._full = np.zeros(channels)
        self._flat = np.zeros(channels)
        self._peak = np.zeros(channels)

    def look(self, block: F32) -> None:
        """Take a block [n, channels] into account."""
        size = np.abs(block)
        peak = np.maximum(size.max(axis=0), self._peak)
        if not self._exact or float(peak.max()) <= 1.0:
            self._full += np.count_nonzero(size >= _FULL, axis=0)
        elif float(self._peak.max()) <= 1.0:
            self._full[:] = 0.0  # it goes past full scale, which is no limit then
        self._frames += len(block)
        self._peak = peak
        if len(block) > self._run:
            level = (np.abs(np.diff(block, axis=0)) <= 1e-3 * peak) & (size[1:] > 0.9 * peak) & (peak > 1e-3)
            for channel in range(block.shape[1]):
                edges = np.flatnonzero(np.diff(np.concatenate([[0], level[:, channel].view(np.int8), [0]])))
                lengths = edges[1::2] - edges[::2]
                self._flat[channel] += lengths[lengths >= self._run].sum()

    def share(self, channels: list[int]) -> float:
        """The largest share among `channels`."""
        if not self._frames:
            return 0.0
        return float(np.maximum(self._full, self._flat)[channels].max() / self._frames)
