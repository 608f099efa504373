"""Take check: is one take of a segment speech of about the right length, whole, and not stuck? Pure (numpy).

`Listener` is fed the chunks while they pass and asked at the end. A *fatal* finding (not finite, silent) must
not reach anybody; the others are doubts: another take is made, and the last one is delivered. The thresholds
were set against sentences of the built-in voices; `tests/unit/test_audio_check.py` holds them to 5 false
alarms in 1,000.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.engines.base import F32Mono
from pipeline.jobs import SAMPLE_RATE, estimate_seconds, has_words

SILENCE_PEAK = 10 ** (-50 / 20)
"""Speech whose loudest sample stays below -50 dBFS is silent: far below the softest voice, above dither."""

_HOP = SAMPLE_RATE // 50
_WINDOW = 2 * _HOP
_BANDS = 24
_VOICED_DB = -35.0  # below the loud frames: breath and room
_LOUD_PEAK = 0.3  # below it nothing has met a rail
_FEW_CLIPPED = SAMPLE_RATE // 1000  # samples a second of speech that may stand at a rail: one click

_SHORTEST, _LONGEST = 0.5, 2.2  # of the expected time; the built-in voices take 0.64 to 1.6 of it
_SLACK_S = 0.8  # a single word may take this much longer than its letters say

_LAGS = range(6, 151)  # 0.12 to 3 s
_DEPTH_DB = 40.0  # below the loud bands nothing counts: room noise is never the same twice
_SAME_DB = 2.5  # mean difference over the bands, between loops that are not whole frames long
_HELD_S = 1.6
_REPEATS = 2.0  # a stretch equal to itself one lag later for two lags is there three times
_VOICED_SHARE = 0.35  # of that stretch at least: pauses are equal to pauses
_REPEATS_S = 1.0  # and for at least this long: a vowel is equal to itself too

_CUT_WITHIN_DB = 18.0  # of the loud frames: speech dies away, and the shortest fade is softer than this
_EDGE = SAMPLE_RATE // 500

_ECHO = re.compile(r"(.{1,40}?)\1{2,}")

Spectrum = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a take: `reason` goes into the error's params."""

    reason: str
    fatal: bool = False


class Listener:
    """Hears one take of `text` (one segment) at `speed`; `natural` is False for engines that only beep.

    `like_s`: a recording is said again that has so many seconds of voice (`voiced_seconds`, divided by the
    speed). Then nothing is known of its words: whether it repeats itself or ends in the middle of a sound is
    the recording's own affair, and silence may be all there is to say. `misheard` tells whether somebody who
    writes a whole take down has other words than the text; it is asked last, since it costs most.
    """

    def __init__(
        self,
        text: str,
        speed: float = 1.0,
        *,
        expected_s: float | None = None,
        natural: bool = True,
        like_s: float | None = None,
        misheard: Callable[[F32Mono], bool] | None = None,
    ) -> None:
        self._text = text
        self._misheard = misheard
        self._speed = speed
        self._like_s = like_s
        self._words = has_words(text) if like_s is None else like_s > 0
        self._expected_s = estimate_seconds(text, speed) if expected_s is None else expected_s
        self._natural = natural
        self._chunks: list[F32Mono] = []

    def chunk(self, chunk: F32Mono) -> Finding | None:
        """Look at float32 samples, shape (n,), 24 kHz, before they go on; a finding is fatal."""
        if not np.isfinite(chunk).all():
            return Finding("not_finite", fatal=True)
        self._chunks.append(chunk)
        return None

    def end(self) -> Finding | None:
        """The first thing that is wrong with the whole take, None when nothing is."""
        signal = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.float32)
        self._chunks.clear()
        if not self._words:
            return None
        if not len(signal) or float(np.abs(signal).max()) < SILENCE_PEAK:
            # Noise that is said again may well become silence.
            return Finding("silent", fatal=self._like_s is None)
        if not self._natural:
            return None
        if self._like_s is not None:
            return compare(signal, self._like_s)
        found = examine(signal, self._text, self._expected_s, self._speed)
        if found is None and self._misheard is not None and self._misheard(signal):
            return Finding("other_words")
        return found


def examine(signal: F32Mono, text: str, expected_s: float, speed: float = 1.0) -> Finding | None:
    """The doubt about audible `signal`, float32, shape (n,), 24 kHz, said to be `text`; None without one."""
    bands, loudness = _spectrum(signal)
    loud = float(np.percentile(loudness, 95))
    voiced = loudness > loud + _VOICED_DB
    voiced_s = float(voiced.sum()) * _HOP / SAMPLE_RATE
    if _clipped(signal) > _FEW_CLIPPED * max(voiced_s, 1.0):
        return Finding("clipped")
    if not _repeats_itself(text) and _stuck(bands, voiced, max(1.0, 1.0 / speed)):
        return Finding("stuck")
    if voiced_s < _SHORTEST * expected_s - 0.1:
        return Finding("too_short")
    if voiced_s > _LONGEST * expected_s + _SLACK_S:
        return Finding("too_long")
    if _cut_off(signal, loud):
        return Finding("cut_off")
    return None


def compare(signal: F32Mono, like_s: float) -> Finding | None:
    """The doubt about audible `signal`, float32, shape (n,), 24 kHz, that should have `like_s` of voice."""
    voiced_s = voiced_seconds(signal, SAMPLE_RATE)
    if _clipped(signal) > _FEW_CLIPPED * max(voiced_s, 1.0):
        return Finding("clipped")
    if voiced_s < _SHORTEST * like_s - 0.1:
        return Finding("too_short")
    if voiced_s > _LONGEST * like_s + _SLACK_S:
        return Finding("too_long")
    return None


def voiced_seconds(signal: F32Mono, rate: int) -> float:
    """Seconds of mono samples in which somebody speaks: as loud as `examine` asks for. 0 for silence."""
    frame = max(1, rate // 50)
    frames = signal[: len(signal) // frame * frame].reshape(-1, frame).astype(np.float64)
    if not len(frames) or float(np.abs(signal).max()) < SILENCE_PEAK:
        return 0.0
    loudness = 10 * np.log10((frames**2).mean(axis=1) + 1e-10)
    return float((loudness > np.percentile(loudness, 95) + _VOICED_DB).sum()) * frame / rate


def _spectrum(signal: F32Mono) -> tuple[Spectrum, npt.NDArray[np.float32]]:
    """Energies in dB of 24 bands spaced as the ear does, shape (frames, bands), 50 frames a second, and of
    the whole frame, shape (frames,). Full scale is 0 dB."""
    padded = np.pad(signal, (0, max(0, _WINDOW - len(signal))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW).astype(np.float32), axis=1)) ** 2
    # Mel scale of O'Shaughnessy, 1987: m = 2595 log10(1 + f / 700).
    top = 2595 * np.log10(1 + 8000 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, _BANDS + 1) / 2595) - 1)
    bins = np.unique(np.round(edges * _WINDOW / SAMPLE_RATE).astype(int))
    sums = np.add.reduceat(power[:, : bins[-1]], bins[:-1], axis=1) / np.diff(bins)
    reference = (_WINDOW / 4) ** 2
    bands = 10 * np.log10(sums / reference + 1e-9)
    bands = np.maximum(bands, np.percentile(bands, 95) - _DEPTH_DB)
    mean_square = (frames.astype(np.float64) ** 2).mean(axis=1)
    return bands.astype(np.float32), (10 * np.log10(mean_square + 1e-10)).astype(np.float32)


def _clipped(signal: F32Mono) -> int:
    """Samples in flat tops: runs of at least three within 0.1 % of the peak, at whatever level."""
    size = np.abs(signal)
    peak = float(size.max())
    if peak < _LOUD_PEAK:
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (size >= 0.999 * peak).astype(np.int8), [0]])))
    runs = edges[1::2] - edges[::2]
    return int(runs[runs >= 3].sum())


def _stuck(bands: Spectrum, voiced: npt.NDArray[np.bool_], slowness: float) -> bool:
    """Whether a sound is held for too long, or a stretch comes three times in a row, the same each time.

    `slowness` is how much longer than usual everything lasts.
    """
    still = np.abs(bands[1:] - bands[:-1]).mean(axis=1) < _SAME_DB
    if _longest_run(still & voiced[1:]) * _HOP > _HELD_S * slowness * SAMPLE_RATE:
        return True
    # A loop is not a whole number of frames long: smoothed, half a frame is little.
    smooth = (np.vstack([bands[:1], bands[:-1]]) + 2 * bands + np.vstack([bands[1:], bands[-1:]])) / 4
    for lag in _LAGS:
        if len(bands) < lag + _REPEATS * lag:
            break
        # Weighted by where there is a voice: pauses are always alike.
        weight = (voiced[lag:] & voiced[:-lag]).astype(np.float32)
        difference = np.abs(smooth[lag:] - smooth[:-lag]).mean(axis=1) * weight
        length = int(max(_REPEATS * lag, _REPEATS_S * slowness * SAMPLE_RATE / _HOP))
        if len(weight) < length:
            continue
        total = np.cumsum(np.concatenate([[0.0], difference]))
        count = np.cumsum(np.concatenate([[0.0], weight]))
        voices = count[length:] - count[:-length]
        mean = (total[length:] - total[:-length]) / np.maximum(voices, 1.0)
        if bool(((mean < _SAME_DB) & (voices > _VOICED_SHARE * length)).any()):
            return True
    return False


def _longest_run(flags: npt.NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _cut_off(signal: F32Mono, loud: float) -> bool:
    """Whether the last sound stops while it is still loud; the pause that follows a segment is zeros."""
    end = int(np.flatnonzero(signal)[-1]) + 1
    last = signal[max(0, end - _EDGE) : end].astype(np.float64)
    return 10 * float(np.log10((last**2).mean() + 1e-10)) > loud - _CUT_WITHIN_DB


def _repeats_itself(text: str) -> bool:
    """Whether the text says the same three times in a row: "ha ha ha", "啊啊啊", "0000"."""
    plain = "".join(ch for ch in text.casefold() if ch.isalnum())
    return _ECHO.search(plain) is not None
