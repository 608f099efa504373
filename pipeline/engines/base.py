"""The Engine protocol (CONTRACTS 8) and the values that cross it. No engine is imported here.

A worker owns one engine instance and calls it from one thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.codes import CosydError
from pipeline.jobs import SAMPLE_RATE, Mode
from pipeline.profile import Config

F32Mono: TypeAlias = npt.NDArray[np.float32]
"""Shape (samples,), values in [-1, 1]."""

MAX_CHUNK_SAMPLES = SAMPLE_RATE
"""An engine yields at most a second at a time, so that a stop is heard soon."""


class StopFlag(Protocol):
    """Looked at between chunks. `threading.Event` is one."""

    def is_set(self) -> bool: ...


class EngineUnavailable(CosydError):
    """The engine cannot load here (`model_missing`, `engine_failed`); `params` say why."""


class OutOfMemory(CosydError):
    """Host or device memory ran out; the worker reports it and the job is retried leaner."""

    def __init__(self, resource: str, **params: Any) -> None:
        super().__init__("out_of_memory", resource=resource, **params)
        self.resource = resource


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. `languages` are BCP-47 primary tags; empty means any.

    `natural`: it speaks, so the take check may judge it as speech; False for engines that only make signals.
    """

    modes: frozenset[Mode]
    languages: tuple[str, ...]
    longest_segment_s: float
    sample_rate: int = SAMPLE_RATE
    seeds: bool = True
    instruct: bool = False
    voices: tuple[str, ...] = ()
    model: str = ""
    device: str = "cpu"
    dtype: str = "float32"
    natural: bool = True

    def to_params(self) -> dict[str, Any]:
        """The JSON form sent in `ready`."""
        return {
            "modes": sorted(self.modes),
            "languages": list(self.languages),
            "longest_segment_s": self.longest_segment_s,
            "sample_rate": self.sample_rate,
            "seeds": self.seeds,
            "instruct": self.instruct,
            "voices": list(self.voices),
            "model": self.model,
            "device": self.device,
            "dtype": self.dtype,
        }


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory an engine holds when loaded; None is unknown."""

    rss_bytes: int | None
    vram_bytes: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece to speak. `start`/`end` are character offsets into the job's text; `pause_s` follows it."""

    idx: int
    text: str
    start: int
    end: int
    pause_s: float = 0.0
    language: str = "auto"


@dataclass(frozen=True, slots=True)
class Options:
    """How to speak it."""

    seed: int
    speed: float = 1.0
    mode: Mode = "builtin"
    instruct: str | None = None


@dataclass(frozen=True, slots=True)
class VoiceFeatures:
    """An enrolled voice: arrays that safetensors can hold, and the hash of the audio they came from."""

    arrays: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    content_hash: str = ""
    transcript: str | None = None


class Engine(Protocol):
    """What a worker needs. `synthesize_many` may be left to `one_after_another`."""

    name: str

    def capabilities(self) -> Capabilities: ...

    def load(self, profile: Config, stop: StopFlag) -> Footprint:
        """Load weights. Raises EngineUnavailable or OutOfMemory."""
        ...

    def enrol(self, audio: F32Mono, rate: int, transcript: str | None) -> VoiceFeatures:
        """Turn reference audio into features. Raises CosydError(unsupported_mode | bad_audio)."""
        ...

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        """Chunks of at most a second, `segment.pause_s` of silence last; ends early when `stop` is set."""
        ...

    def synthesize_many(
        self, segments: Sequence[Segment], voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[tuple[int, F32Mono]]:
        """Chunks of several segments, each with its segment's idx."""
        ...

    def trim(self) -> None:
        """Give back what can be given back without unloading."""
        ...

    def close(self) -> None:
        """Release everything. Idempotent."""
        ...


def one_after_another(
    engine: Engine, segments: Sequence[Segment], voice: VoiceFeatures | str, options: Options, stop: StopFlag
) -> Iterator[tuple[int, F32Mono]]:
    """The default `synthesize_many`."""
    for segment in segments:
        for chunk in engine.synthesize(segment, voice, options, stop):
            yield segment.idx, chunk
        if stop.is_set():
            return


SHIPPED: Mapping[str, str] = {
    "builtin": "pipeline.engines.builtin:BuiltinEngine",
    "cosyvoice3": "pipeline.engines.cosyvoice3.engine:CosyVoice3Engine",
}
"""Engine name -> where its class lives. `engines.extra` in the configuration adds to it."""


def open_engine(name: str, extra: Mapping[str, str]) -> Engine:
    """Instantiate the engine `name` (not yet loaded). Raises EngineUnavailable(engine_failed)."""
    target = {**SHIPPED, **extra}.get(name)
    if target is None:
        raise EngineUnavailable("engine_failed", engine=name, reason="unknown engine")
    module, _, attribute = target.partition(":")
    try:
        engine: Engine = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise EngineUnavailable("engine_failed", engine=name, reason=str(error)) from error
    return engine
