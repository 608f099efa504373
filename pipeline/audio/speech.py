"""Where speech is in a recording, and how far above its noise. Pure; numpy and soxr.

Frames of 20 ms at 8 kHz. What tells speech from noise, hum and clicks: its level goes up and down by
syllables, and its frames are voiced (periodic at a voice's pitch) or change their colour (a whisper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FRAME_S = 0.02
_RATE = 8000
_FRAME, _WINDOW, _FFT = 160, 320, 1024
_BATCH = 512
_DARK_DB = -105.0
"""Below this a frame holds no recorded room, only zeros: it says nothing about noise."""
_RANGE_DB, _ABOVE_FLOOR_DB = 35.0, 6.0
_GAP_S, _BURST_S = 0.2, 0.06
"""Pauses shorter than this belong to a word; sounds shorter than that are clicks."""
_MODULATION_DB, _VOICED, _ONE_COLOUR_HZ, _WHISPER_HZ = 4.0, 0.12, 100.0, 300.0
"""Measured over what is sound. Speech of espeak-ng, hibari and a recording, 5 dB above white noise or better:
level moves by 5 to 12 dB, 39 to 93 % voiced, the spectral centre moves by 400 to 870 Hz; a whisper 10 dB, 1
%, 400 Hz. White, pink and brown noise, rain, hum and a tone: at most 2 dB; struck chords 5 dB, but 1 Hz."""
_SPOKEN_S = 0.3


@dataclass(frozen=True, slots=True)
class Activity:
    """`levels` [frames] in dB of full scale; `spans`, pieces of sound as (first, last + 1) frames; `floor_db`
    and `loud_db`, the room and the voice (None: there is no sound, or no room)."""

    levels: F64
    spans: tuple[tuple[int, int], ...]
    floor_db: float | None
    loud_db: float | None
    speech: bool

    @property
    def snr_db(self) -> float | None:
        """How far the voice is above the room; None when the room cannot be heard."""
        return None if self.floor_db is None or self.loud_db is None else self.loud_db - self.floor_db


def find_speech(mono: F32, rate: int) -> Activity:
    """What is sound and what is pause in mono samples."""
    import soxr

    small = mono if rate == _RATE else soxr.resample(mono, rate, _RATE, quality="MQ")
    small = np.asarray(small, np.float32)
    levels, voiced, centres = _features(small)
    heard = levels[levels > _DARK_DB]
    if not len(heard):
        return Activity(levels, (), None, None, False)
    loud = float(np.percentile(heard, 95))
    floor = float(np.percentile(heard, 5))
    # A room is what lies well below the voice; speech that fills every frame has none that can be measured.
    room = floor if loud - floor > 3.0 else None
    edge = max(loud - _RANGE_DB, floor + min(_ABOVE_FLOOR_DB, (loud - floor) / 2))
    active = levels >= edge if loud - floor > 1.0 else levels > _DARK_DB
    spans = _spans(active)
    return Activity(levels, spans, room, loud, _is_speech(levels, voiced, centres, spans))


def _features(small: F32) -> tuple[F64, npt.NDArray[np.bool_], F64]:
    """For each frame: level in dB between 80 and 3,800 Hz, voiced or not, spectral centre in Hz."""
    count = len(small) // _FRAME
    levels = np.full(count, -200.0)
    voiced = np.zeros(count, np.bool_)
    centres = np.zeros(count)
    if not count:
        return levels, voiced, centres
    padded = np.pad(small, (0, _WINDOW))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_FRAME][:count]
    taper = np.hanning(_WINDOW).astype(np.float32)
    scale = float(np.square(taper).sum()) * _FFT / 2
    hertz = np.fft.rfftfreq(_FFT, 1 / _RATE)
    band = (hertz >= 80) & (hertz <= 3800)
    own = np.fft.irfft(np.square(np.abs(np.fft.rfft(taper, _FFT))), _FFT)
    low, high = _RATE // 400, _RATE // 65
    fall = np.maximum(own[low:high] / own[0], 0.05)
    for at in range(0, count, _BATCH):
        powers: Any = np.square(np.abs(np.fft.rfft(windows[at : at + _BATCH] * taper, _FFT)))
        powers[:, ~band] = 0.0
        sums = powers.sum(axis=1)
        part = slice(at, at + len(powers))
        levels[part] = 10 * np.log10(sums / scale + 1e-20)
        centres[part] = (powers @ hertz) / np.maximum(sums, 1e-20)
        lags = np.fft.irfft(powers, _FFT, axis=1)
        peaks = (lags[:, low:high] / fall).max(axis=1) / np.maximum(lags[:, 0], 1e-20)
        voiced[part] = peaks > 0.6
    return levels, voiced, centres


def _spans(active: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], active.view(np.int8), [0]])))
    found: list[tuple[int, int]] = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if found and (start - found[-1][1]) * FRAME_S < _GAP_S:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return tuple(s for s in found if (s[1] - s[0]) * FRAME_S >= _BURST_S)


def _is_speech(
    levels: F64, voiced: npt.NDArray[np.bool_], centres: F64, spans: tuple[tuple[int, int], ...]
) -> bool:
    if not spans or FRAME_S * sum(end - start for start, end in spans) < _SPOKEN_S:
        return False
    inside = np.zeros(len(levels), np.bool_)
    for start, end in spans:
        inside[start:end] = True
    smooth = np.convolve(np.maximum(levels, _DARK_DB), np.ones(3) / 3, "same")[inside]
    moves = float(np.std(np.maximum(smooth, smooth.max() - 40)))
    colour = float(np.std(centres[inside]))
    if moves < _MODULATION_DB or colour < _ONE_COLOUR_HZ:
        return False
    return bool(voiced[inside].mean() >= _VOICED or colour >= _WHISPER_HZ)
