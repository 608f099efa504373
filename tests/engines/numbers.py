"""An engine that speaks the numbers in its text as tones, and `decode`, which reads them back from samples.

Load it with `engines.extra = {"numbers": "tests.engines.numbers:NumbersEngine"}` in a process that has the
repository root on sys.path. "Segment 7." becomes START 7 CHECK END, each a tone of 80 ms in 120 ms;
a text without a number says 0. So a stretch that is said twice, left out or cut is seen in the samples, after
any join, 20 ms fade or lossless format.

Orders in the text (they are not spoken; `once` leaves a marker in $COSYD_STATE_DIR, so the next try lives):
`[slow 0.05]` seconds of waiting before each chunk, `[gate NAME]` waits in the middle until the file NAME is
in $COSYD_STATE_DIR, `[die]` or `[die once]` SIGKILLs its process in the middle, `[hang]` (or once) stops
there for ever and hears no stop, `[oom]` (or once), `[leak 10MB]`. Before any sound: `[raise]`, `[nan]`;
`[silence]` is found only when the take is whole.
$NUMBERS_SLOW_S is a `[slow]` for every text.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.codes import CosydError
from pipeline.engines.base import (
    Capabilities,
    F32Mono,
    Footprint,
    Options,
    OutOfMemory,
    Segment,
    StopFlag,
    VoiceFeatures,
    one_after_another,
)
from pipeline.jobs import SAMPLE_RATE
from pipeline.profile import Config

START, END = 10, 11
TONE = SAMPLE_RATE * 80 // 1000
SYMBOL = SAMPLE_RATE * 120 // 1000
EDGE = SAMPLE_RATE * 30 // 1000
AMPLITUDE = 0.3
BROKEN = -1
"""Stands in a decoded list for a number that was not heard whole, or twice in part."""

_ORDER = re.compile(r"\[(slow|gate|die|hang|oom|raise|nan|silence|leak)(?: +([^\]]+))?\]")
_LOW_HZ, _STEP_HZ = 500, 100
_FRAME = SAMPLE_RATE * 5 // 1000


def numbers_in(text: str) -> list[int]:
    """The whole numbers of a text, orders left out; [0] when there is none."""
    return [int(digits) for digits in re.findall(r"[0-9]{1,9}", _ORDER.sub(" ", text))] or [0]


def symbols(number: int) -> list[int]:
    """START, the digits, their check digit, END."""
    digits = [int(digit) for digit in str(number)]
    return [START, *digits, (3 + sum((i + 1) * digit for i, digit in enumerate(digits))) % 10, END]


def _tone(symbol: int, phase: float) -> F32Mono:
    time_s = np.arange(TONE) / SAMPLE_RATE
    tone = AMPLITUDE * np.sin(2 * np.pi * (_LOW_HZ + _STEP_HZ * symbol) * time_s + phase)
    ramp = np.minimum(1, np.minimum(np.arange(TONE), np.arange(TONE)[::-1]) / 120)
    out = np.zeros(SYMBOL, np.float32)
    start = (SYMBOL - TONE) // 2
    out[start : start + TONE] = tone * ramp
    return out


def decode(pcm: bytes | np.ndarray) -> list[int]:
    """The numbers in s16le bytes (or int16/float samples), in order; BROKEN for what is not whole."""
    raw = np.frombuffer(pcm, "<i2") if isinstance(pcm, bytes | bytearray | memoryview) else pcm
    scale = 32768.0 if np.issubdtype(raw.dtype, np.integer) else 1.0
    samples = raw.astype(np.float64) / scale
    found: list[int] = []
    word: list[int] | None = None
    for symbol in _bursts(samples):
        if symbol == START:
            if word is not None:
                found.append(BROKEN)
            word = [symbol]
        elif word is None:
            if not found or found[-1] != BROKEN:
                found.append(BROKEN)
        else:
            word.append(symbol)
            if symbol == END:
                found.append(_number(word))
                word = None
    return found if word is None else [*found, BROKEN]


def _number(word: list[int]) -> int:
    digits = word[1:-2]
    if not digits or BROKEN in word:
        return BROKEN
    number = int("".join(map(str, digits)))
    return number if symbols(number) == word else BROKEN


def _bursts(samples: np.ndarray) -> list[int]:
    """The symbol of each tone; BROKEN for one that is shorter or longer than a tone is."""
    frames = len(samples) // _FRAME
    if not frames:
        return []
    power = np.square(samples[: frames * _FRAME].reshape(frames, _FRAME)).mean(axis=1)
    loud = np.concatenate([[False], power > (AMPLITUDE / 10) ** 2, [False]])
    edges = np.flatnonzero(np.diff(loud.astype(np.int8)))
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        tone = samples[start * _FRAME : end * _FRAME]
        if len(tone) < SAMPLE_RATE // 100:
            continue  # a click
        spectrum = np.abs(np.fft.rfft(tone * np.hanning(len(tone)), 8192))
        symbol = round((float(np.argmax(spectrum)) * SAMPLE_RATE / 8192 - _LOW_HZ) / _STEP_HZ)
        whole = abs(len(tone) - TONE) <= SAMPLE_RATE * 20 // 1000
        found.append(symbol if whole and 0 <= symbol <= END else BROKEN)
    return found


class NumbersEngine:
    """See the module."""

    name = "numbers"
    leaked: list[bytearray] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(
            modes=frozenset({"builtin"}), languages=(), longest_segment_s=30.0, voices=("numbers",),
            model="numbers-1", natural=False,
        )  # fmt: skip

    def load(self, profile: Config, stop: StopFlag) -> Footprint:
        return Footprint(rss_bytes=1_000_000, vram_bytes=None)

    def enrol(self, audio: F32Mono, rate: int, transcript: str | None) -> VoiceFeatures:
        raise CosydError("unsupported_mode", mode="zero_shot")

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        orders = {match[1]: match[2] or "" for match in _ORDER.finditer(segment.text)}
        slow_s = float(orders.get("slow") or os.environ.get("NUMBERS_SLOW_S") or 0)
        if "leak" in orders:
            size = float(re.sub(r"[^0-9.]", "", orders["leak"]) or 1)
            self.leaked.append(bytearray(os.urandom(4096)) * int(size * 256))
        if "raise" in orders:
            raise RuntimeError("the numbers engine was told to fail")
        chunks = self._chunks(segment, options)
        middle = len(chunks) // 2
        for at, chunk in enumerate(chunks):
            if at == middle:
                self._trouble(segment.text, orders, stop)
            if slow_s:
                _pause(slow_s, stop)
            if stop.is_set():
                return
            if "nan" in orders and at == 0:
                chunk = np.full_like(chunk, np.nan)
            yield np.zeros_like(chunk) if "silence" in orders else chunk

    def synthesize_many(
        self, segments: Sequence[Segment], voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[tuple[int, F32Mono]]:
        yield from one_after_another(self, segments, voice, options, stop)

    def trim(self) -> None:
        pass

    def close(self) -> None:
        self.leaked.clear()

    def _chunks(self, segment: Segment, options: Options) -> list[F32Mono]:
        phase = float(np.random.default_rng(options.seed).uniform(0, 2 * np.pi))
        spoken = [symbol for number in numbers_in(segment.text) for symbol in symbols(number)]
        chunks = [_tone(symbol, phase) for symbol in spoken]
        chunks[0] = np.concatenate([np.zeros(EDGE, np.float32), chunks[0]])
        rest = np.zeros(EDGE + round(segment.pause_s * SAMPLE_RATE), np.float32)
        chunks[-1] = np.concatenate([chunks[-1], rest])
        return chunks

    def _trouble(self, text: str, orders: dict[str, str], stop: StopFlag) -> None:
        if gate := orders.get("gate"):
            while not (_state_dir() / gate).exists() and not stop.is_set():
                time.sleep(0.005)
        if self._due("die", text, orders):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._due("hang", text, orders):
            threading.Event().wait()
        if self._due("oom", text, orders):
            raise OutOfMemory("ram")

    def _due(self, name: str, text: str, orders: dict[str, str]) -> bool:
        """Whether the order is given, and for `once` whether this is the first time."""
        if name not in orders:
            return False
        if orders[name] != "once":
            return True
        mark = _state_dir() / f"{name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.once"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _state_dir() -> Path:
    return Path(os.environ.get("COSYD_STATE_DIR") or tempfile.gettempdir())


def _pause(seconds: float, stop: StopFlag) -> None:
    """Wait as an engine at work would: a stop is heard within 10 ms."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop.is_set():
        time.sleep(min(left, 0.01))
