"""The five feature extractors, in numpy: resampling, three mel spectrograms, frames of one FFT.

Own code because no torchaudio fits every torch (a CPU build does not load PyPI's); held by upstream's numbers
to 1e-4. Sources: torchaudio's sinc resampler and Kaldi fbank, Whisper's log-mel, Matcha-TTS's mel, Slaney's
mel scale.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]

RATE_16K, RATE_24K = 16_000, 24_000
_CHUNK = 512
"""Frames of one FFT batch: bounds the memory for long audio."""


def resample(audio: npt.NDArray[Any], source: int, target: int) -> Array:
    """Band-limited sinc interpolation: Hann window, 6 zero crossings, roll-off 0.99. [n] -> [ceil(n
    target/source)]."""
    audio = np.asarray(audio, np.float32)
    if source == target or not len(audio):
        return audio
    divisor = math.gcd(source, target)
    step, phases = source // divisor, target // divisor
    width, kernels = _sinc_kernels(step, phases)
    length = math.ceil(len(audio) * phases / step)
    padded = np.pad(audio, (width, width + step))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[1])[::step]
    out = windows.astype(np.float32) @ kernels.T
    return np.ascontiguousarray(out.reshape(-1)[:length], np.float32)


@cache
def _sinc_kernels(step: int, phases: int, crossings: int = 6, rolloff: float = 0.99) -> tuple[int, Array]:
    """One kernel for each output phase, [phases, 2 width + step]."""
    base = min(step, phases) * rolloff
    width = math.ceil(crossings * step / base)
    at = np.arange(-width, width + step, dtype=np.float64)[None, :] / step
    t = (np.arange(0, -phases, -1, dtype=np.float64)[:, None] / phases + at) * base
    t = t.clip(-crossings, crossings)
    window = np.cos(t * math.pi / crossings / 2) ** 2
    t *= math.pi
    with np.errstate(invalid="ignore", divide="ignore"):
        kernels = np.where(t == 0, 1.0, np.sin(t) / t)
    return width, (kernels * window * (base / step)).astype(np.float32)


@cache
def slaney_mel(rate: int, n_fft: int, bands: int, low: float, high: float) -> Array:
    """Slaney's mel filters with area normalisation, [bands, n_fft/2 + 1]."""

    def to_mel(hz: F64) -> F64:
        return np.where(
            hz < 1000, hz / (200 / 3), 15 + np.log(np.maximum(hz, 1e-9) / 1000) * (27 / math.log(6.4))
        )

    def to_hz(mel: F64) -> F64:
        return np.where(mel < 15, mel * (200 / 3), 1000 * np.exp((mel - 15) * (math.log(6.4) / 27)))

    first, last = (float(m) for m in to_mel(np.array([low, high], np.float64)))
    edges = to_hz(np.linspace(first, last, bands + 2))
    bins = np.linspace(0, rate / 2, n_fft // 2 + 1)
    ramps = edges[:, None] - bins[None, :]
    rising = -ramps[:-2] / np.diff(edges)[:-1, None]
    falling = ramps[2:] / np.diff(edges)[1:, None]
    weights = np.maximum(0, np.minimum(rising, falling))
    weights *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return weights.astype(np.float32)


def _hann(n: int) -> F64:
    """Periodic Hann window."""
    return np.asarray(0.5 - 0.5 * np.cos(2 * math.pi * np.arange(n) / n), np.float64)


def _power(audio: npt.NDArray[Any], n_fft: int, hop: int) -> F64:
    """|FFT|^2 of Hann-windowed frames, [frames, n_fft/2 + 1]; no padding."""
    if len(audio) < n_fft:
        return np.zeros((0, n_fft // 2 + 1))
    frames = np.lib.stride_tricks.sliding_window_view(audio, n_fft)[::hop]
    window = _hann(n_fft)
    parts = [
        np.abs(np.fft.rfft(frames[i : i + _CHUNK] * window, axis=1)) ** 2
        for i in range(0, len(frames), _CHUNK)
    ]
    return np.concatenate(parts)


def _reflected(audio: npt.NDArray[Any], side: int) -> npt.NDArray[Any]:
    """Reflection padding that also takes audio shorter than the pad."""
    return np.pad(np.asarray(audio, np.float32), side, mode="reflect" if len(audio) > 1 else "edge")


def flow_mel(audio: npt.NDArray[Any]) -> Array:
    """The flow's prompt: natural-log mel of 24 kHz audio, 80 bands, hop 480. [n] -> [n // 480, 80]."""
    n_fft, hop = 1920, 480
    power = _power(_reflected(audio, (n_fft - hop) // 2), n_fft, hop)
    mel = np.sqrt(power + 1e-9) @ slaney_mel(RATE_24K, n_fft, 80, 0.0, 12_000.0).T
    return np.log(np.maximum(mel, 1e-5)).astype(np.float32)


def whisper_mel(audio: npt.NDArray[Any]) -> Array:
    """The speech tokenizer's input: Whisper log-mel of 16 kHz audio, 128 bands, hop 160. [n] -> [128, n //
    160]."""
    n_fft, hop = 400, 160
    power = _power(_reflected(audio, n_fft // 2), n_fft, hop)[: len(audio) // hop]
    mel = power @ slaney_mel(RATE_16K, n_fft, 128, 0.0, 8_000.0).T
    log = np.log10(np.maximum(mel, 1e-10))
    log = np.maximum(log, log.max(initial=-10.0) - 8.0)
    return np.ascontiguousarray(((log + 4.0) / 4.0).T, np.float32)


def kaldi_fbank(audio: npt.NDArray[Any], bands: int = 80) -> Array:
    """The speaker encoder's input before its mean is taken off: Kaldi fbank of 16 kHz audio. [n] -> [frames,
    80].

    25 ms frames each 10 ms, snip edges, mean of each frame removed, pre-emphasis 0.97, Povey window,
    512-point FFT, 20 to 8000 Hz, no dither, natural log with a floor of float32's epsilon.
    """
    size, shift, n_fft = 400, 160, 512
    if len(audio) < size:
        return np.zeros((0, bands), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(np.asarray(audio, np.float64), size)[::shift]
    window = (0.5 - 0.5 * np.cos(2 * math.pi * np.arange(size) / (size - 1))) ** 0.85
    filters = _kaldi_mel(bands, n_fft)
    out = []
    for i in range(0, len(frames), _CHUNK):
        part = frames[i : i + _CHUNK]
        part = part - part.mean(axis=1, keepdims=True)
        previous = np.concatenate([part[:, :1], part[:, :-1]], axis=1)
        part = (part - 0.97 * previous) * window
        power = np.abs(np.fft.rfft(part, n_fft, axis=1)) ** 2
        out.append(np.log(np.maximum(power @ filters.T, np.finfo(np.float32).eps)))
    return np.concatenate(out).astype(np.float32)


@cache
def _kaldi_mel(bands: int, n_fft: int, low: float = 20.0, high: float = 8_000.0) -> F64:
    """Triangles on the mel scale 1127 ln(1 + f/700), without the Nyquist bin's weight. [bands, n_fft/2 +
    1]."""

    def to_mel(hz: Any) -> Any:
        return 1127.0 * np.log1p(np.asarray(hz, np.float64) / 700.0)

    edges = np.linspace(to_mel(low), to_mel(high), bands + 2)
    mel = to_mel(RATE_16K / n_fft * np.arange(n_fft // 2))
    rising = (mel[None, :] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - mel[None, :]) / (edges[2:] - edges[1:-1])[:, None]
    return np.pad(np.maximum(0.0, np.minimum(rising, falling)), ((0, 0), (0, 1)))
