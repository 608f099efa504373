"""An engine that does as its text says, for tests of the runner and the worker.

A sentence "Number 7 ..." becomes a tone-free level of 7/100 (so that what was heard can be read back from the
samples), 0.25 s a chunk, four chunks, with a whisper of noise from the seed. Words in it make trouble: see
`_TROUBLES`. `wait` stops after the first chunk until the file `gate` appears in $COSYD_STATE_DIR.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.codes import CosydError
from pipeline.engines.base import (
    Capabilities,
    EngineUnavailable,
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

CHUNK = SAMPLE_RATE // 4
CHUNKS = 4
LEVEL = 0.01


def heard_numbers(samples: np.ndarray) -> list[int]:
    """The numbers spoken in float samples. Stretches below 0.1 s (fades) and silence are left out."""
    levels = np.rint(samples / LEVEL).astype(int)
    edges = np.flatnonzero(np.diff(levels)) + 1
    starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(levels)]
    return [
        int(levels[start])
        for start, end in zip(starts, ends, strict=True)
        if end - start > SAMPLE_RATE // 10 and levels[start]
    ]


class ScriptedEngine:
    """See the module. `spoken` lists (number, seed) of every take begun."""

    name = "scripted"

    def __init__(self) -> None:
        self.spoken: list[tuple[int, int]] = []
        self.trims = 0
        self.closed = False

    def capabilities(self) -> Capabilities:
        return Capabilities(
            modes=frozenset({"builtin"}), languages=("en",), longest_segment_s=30.0, voices=("scripted",),
            model="scripted-1", natural=False,
        )  # fmt: skip

    def load(self, profile: Config, stop: StopFlag) -> Footprint:
        if os.environ.get("SCRIPTED_LOAD") == "missing":
            raise EngineUnavailable("model_missing", engine=self.name)
        if os.environ.get("SCRIPTED_LOAD") == "oom":
            raise OutOfMemory("vram")
        return Footprint(rss_bytes=1_000_000, vram_bytes=None)

    def enrol(self, audio: F32Mono, rate: int, transcript: str | None) -> VoiceFeatures:
        raise CosydError("unsupported_mode", mode="zero_shot")

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        found = re.search(r"\d+", segment.text)
        number = int(found.group()) if found else 1
        takes_before = sum(1 for n, _ in self.spoken if n == number)
        self.spoken.append((number, options.seed))
        noise = np.random.default_rng(options.seed)
        words = set(re.findall(r"[a-z]+", segment.text.lower()))
        for index in range(CHUNKS):
            chunk = np.full(CHUNK, number * LEVEL, np.float32)
            chunk += noise.uniform(-LEVEL / 10, LEVEL / 10, CHUNK).astype(np.float32)
            if "silence" in words:
                chunk[:] = 0
            if "poison" in words and index == 1:
                chunk[7] = np.nan
            if "flaky" in words and index == 1 and not takes_before:
                chunk[7] = np.nan
            yield chunk
            if index == 0:
                self._trouble(words, segment.text, stop)
            if stop.is_set():
                return
        yield np.zeros(round(segment.pause_s * SAMPLE_RATE), np.float32)

    def synthesize_many(
        self, segments: Sequence[Segment], voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[tuple[int, F32Mono]]:
        return one_after_another(self, segments, voice, options, stop)

    def trim(self) -> None:
        self.trims += 1

    def close(self) -> None:
        self.closed = True

    def _trouble(self, words: set[str], text: str, stop: StopFlag) -> None:
        if "crash" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        if "boom" in words:
            raise RuntimeError(text)  # as a library may: it must not be logged
        if "memory" in words:
            raise OutOfMemory("vram")
        if "grandchild" in words:
            child = subprocess.Popen(["sleep", "600"])
            (_state() / "grandchild").write_text(str(child.pid))
        if "hang" in words:
            while True:  # deaf to the stop flag
                time.sleep(0.01)
        if words & {"wait", "grandchild"}:
            gate = _state() / "gate"
            while not (gate.exists() or stop.is_set()):
                time.sleep(0.002)


def _state() -> Path:
    return Path(os.environ["COSYD_STATE_DIR"])
