"""Voice conversion as a job: a recording said again in another voice, piece by piece.

The recording lies in the job's folder (`pipeline.voices.source`). Its pieces are cut where it is quietest; a
segment's `start` and `end` are milliseconds of the recording, its text is empty. Used by `pipeline.job_run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pipeline.audio.check import voiced_seconds
from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, Options, Segment, StopFlag, VoiceFeatures
from pipeline.jobs import SAMPLE_RATE
from pipeline.queue.values import SegmentRow
from pipeline.voices.source import source_path

LONGEST_PIECE_S = 25.0
"""The model's speech tokenizer takes 30 s at most."""
SHORTEST_PIECE_S = 1.0
QUIET_WINDOW_S = 0.2
SILENT_PEAK = 10 ** (-54 / 20)


class Converter(Protocol):
    """An engine that can say a recording in another voice."""

    def convert(
        self,
        audio: F32Mono,
        rate: int,
        voice: VoiceFeatures | str,
        options: Options,
        stop: StopFlag,
    ) -> Iterator[F32Mono]:
        """Chunks as `Engine.synthesize` gives them. Raises CosydError(bad_audio), OutOfMemory."""
        ...


def cut_spans(
    audio: npt.NDArray[np.float32], rate: int, longest_s: float, begin_ms: int = 0
) -> list[tuple[int, int]]:
    """(start, end) in ms of the pieces from `begin_ms` on: each at most `longest_s`, cut in the middle of the
    quietest 0.2 s of its second half. Pure and deterministic."""
    longest_ms = int(1000 * max(2 * SHORTEST_PIECE_S, min(longest_s, LONGEST_PIECE_S)))
    whole_ms = len(audio) * 1000 // rate
    step = max(1, rate // 100)
    frames = np.square(audio[: len(audio) // step * step].reshape(-1, step), dtype=np.float64).mean(axis=1)
    window = int(QUIET_WINDOW_S * 100)
    energy = np.convolve(frames, np.ones(window), "valid") if len(frames) >= window else frames
    spans = []
    at = begin_ms
    while whole_ms - at > longest_ms:
        low = at + longest_ms // 2
        high = min(at + longest_ms, whole_ms - int(1000 * SHORTEST_PIECE_S))
        places = energy[low // 10 : max(low // 10 + 1, high // 10 - window)]
        cut = low + 10 * int(places.argmin()) + 10 * window // 2 if len(places) else high
        spans.append((at, cut))
        at = cut
    if whole_ms > at:
        spans.append((at, whole_ms))
    return spans


def cut_source(job_dir: Path, longest_s: float, finished: Sequence[SegmentRow]) -> tuple[Segment, ...]:
    """The job's segments; `finished` ones, the first, stay as they are. Raises CosydError(bad_audio)."""
    audio, rate = _read(source_path(job_dir), 0, None)
    spans = [(row.start, row.end) for row in finished]
    spans += cut_spans(audio, rate, longest_s, spans[-1][1] if spans else 0)
    return tuple(Segment(idx, "", start, end) for idx, (start, end) in enumerate(spans))


def _read(path: Path, start_ms: int, end_ms: int | None) -> tuple[F32Mono, int]:
    import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            rate = int(file.samplerate)
            file.seek(min(file.frames, start_ms * rate // 1000))
            count = -1 if end_ms is None else (end_ms - start_ms) * rate // 1000
            return file.read(count, dtype="float32"), rate
    except (OSError, soundfile.LibsndfileError):
        raise CosydError("bad_audio", reason="empty") from None


@dataclass(frozen=True, slots=True)
class Converting:
    """Stands for the engine in a take: `synthesize` converts the stretch that the segment names."""

    engine: Any
    job_dir: Path

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        """As `Engine.synthesize`. A silent stretch stays silent: there is nothing to say in it. Raises
        CosydError(unsupported_mode) where the engine cannot convert."""
        if not hasattr(self.engine, "convert"):
            raise CosydError("unsupported_mode", mode="convert")
        audio, rate = _read(source_path(self.job_dir), segment.start, segment.end)
        if not len(audio) or float(np.abs(audio).max()) < SILENT_PEAK:
            yield from _silence(int((segment.end - segment.start) / 1000 / options.speed * SAMPLE_RATE))
            return
        options = replace(options, instruct=None)
        yield from cast(Converter, self.engine).convert(audio, rate, voice, options, stop)


def voice_in(job_dir: Path, segment: Segment) -> float:
    """Seconds of voice in the stretch that a segment names; the take is checked against it."""
    audio, rate = _read(source_path(job_dir), segment.start, segment.end)
    if not len(audio) or float(np.abs(audio).max()) < SILENT_PEAK:
        return 0.0
    return voiced_seconds(audio, rate)


def _silence(samples: int) -> Iterator[F32Mono]:
    for at in range(0, samples, SAMPLE_RATE):
        yield np.zeros(min(SAMPLE_RATE, samples - at), np.float32)
