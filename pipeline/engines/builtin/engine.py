"""BuiltinEngine: cuts a segment into runs by language, has each spoken, and fits them together.

Loaded by `pipeline.engines.base.open_engine` in a worker. Each part is trimmed to 30 ms of silence and
brought to -20 dBFS, so that two synthesisers sound as one; pauses come from the punctuation between the parts
and from the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.child import clean_up, give_back_heap, own_memory_bytes
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
from pipeline.engines.builtin import espeak
from pipeline.engines.builtin.level import EDGE, even_loudness, silence, trim_edges
from pipeline.engines.builtin.marked import for_hibari, marked_runs
from pipeline.engines.builtin.neural import NeuralEnglish
from pipeline.jobs import SAMPLE_RATE, has_words
from pipeline.profile import Config
from pipeline.text.language import Run
from pipeline.voices.catalogue import ready_made

_CHUNK = SAMPLE_RATE // 2
_OVERLAP = EDGE // 2  # parts' edges are faded silence: half of it may lie over the neighbour's
_PAUSES = {**dict.fromkeys(".!?。！？…", 0.3), **dict.fromkeys(",;:，；：、—", 0.1)}


class BuiltinEngine:
    """Voices `heart` (hibari for English, espeak-ng for the rest) and `espeak` (espeak-ng for all)."""

    name = "builtin"

    def __init__(self) -> None:
        self._english: NeuralEnglish | None = None
        self._espeak = espeak.espeak_path()

    def capabilities(self) -> Capabilities:
        voices = ready_made({}, espeak=self._espeak is not None)
        return Capabilities(
            modes=frozenset({"builtin"}),
            languages=voices[0].languages,
            longest_segment_s=40.0,
            voices=tuple(voice.id for voice in voices),
            model="hibari + espeak-ng" if self._espeak else "hibari",
        )

    def load(self, profile: Config, stop: StopFlag) -> Footprint:
        """Load hibari and say a word, so that the first sentence is as fast as the next.

        Raises EngineUnavailable(engine_failed), OutOfMemory.
        """
        before = own_memory_bytes()
        try:
            self._english = NeuralEnglish()
            for _ in self._english.speak("Ready.", 1.0, 0):
                pass
        except EngineUnavailable:
            raise
        except MemoryError as error:
            raise OutOfMemory("ram") from error
        except Exception as error:
            raise EngineUnavailable("engine_failed", engine=self.name, reason=str(error)) from error
        give_back_heap()
        after = own_memory_bytes()
        return Footprint(after - before if before is not None and after is not None else None, None)

    def enrol(self, audio: F32Mono, rate: int, transcript: str | None) -> VoiceFeatures:
        """Not possible: raises CosydError(unsupported_mode)."""
        raise CosydError("unsupported_mode", mode="zero_shot")

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        """Chunks of half a second, the segment's pause at the end; the same seed gives the same samples.

        Raises CosydError, before any sound: `unsupported_mode` (a cloned voice, or a part that cannot be
        spoken here, with its `language`), `unknown_voice`.
        """
        if isinstance(voice, VoiceFeatures) or options.mode != "builtin":
            raise CosydError("unsupported_mode", mode=options.mode)
        voices = self.capabilities().voices
        if voice not in voices:
            raise CosydError("unknown_voice", voice=voice[:80], known=", ".join(voices))
        try:
            yield from self._synthesize(segment, voice, options, stop)
        except espeak.EspeakStopped:
            return
        except MemoryError as error:
            raise OutOfMemory("ram") from error
        finally:
            # Each utterance has another length; without this the heap keeps the shape of the longest.
            clean_up()

    def synthesize_many(
        self, segments: Sequence[Segment], voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[tuple[int, F32Mono]]:
        yield from one_after_another(self, segments, voice, options, stop)

    def trim(self) -> None:
        """Return free heap to the system."""
        give_back_heap()

    def close(self) -> None:
        self._english = None
        give_back_heap()

    def _synthesize(
        self, segment: Segment, voice: str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        runs = marked_runs(segment.text, segment.language)
        for run in runs:
            self._check(run, voice, options)
        held: F32Mono | None = None  # the end of the last part, over which the next one begins
        for part, pause_s in self._parts(runs, voice, options, stop):
            if held is not None:
                gap = silence(pause_s / options.speed)
                part = _overlapped(np.concatenate([held, gap]), part)
            held = part[len(part) - _OVERLAP :]
            for chunk in _chunks(part[: len(part) - _OVERLAP]):
                if stop.is_set():
                    return
                yield chunk
        if held is None:
            if stop.is_set():
                return
            raise CosydError(
                "unsupported_mode", mode=options.mode, language=segment.language, reason="language"
            )
        for chunk in _chunks(np.concatenate([held, silence(segment.pause_s)])):
            if stop.is_set():
                return
            yield chunk

    def _check(self, run: Run, voice: str, options: Options) -> None:
        """Raise CosydError(unsupported_mode) for words that nobody here can speak: never leave them out."""
        if not has_words(run.text) or (run.language == "en" and voice == "heart"):
            return
        if self._espeak is None:
            reason = "needs_espeak"
        elif not espeak.can_speak(self._espeak, run.text, run.language):
            reason = "language"
        else:
            return
        raise CosydError("unsupported_mode", mode=options.mode, language=run.language, reason=reason)

    def _parts(
        self, runs: Sequence[Run], voice: str, options: Options, stop: StopFlag
    ) -> Iterator[tuple[F32Mono, float]]:
        """Trimmed, even parts, each with the pause at speed 1 between it and the one before."""
        pause_s = 0.0
        for run in runs:
            if not has_words(run.text):
                pause_s = max(pause_s, _pause_after(run.text))
                continue
            for signal, after_s in self._run(run, voice, options, stop):
                part = even_loudness(trim_edges(signal))
                if not len(part):
                    continue
                yield part, pause_s
                pause_s = after_s
                if stop.is_set():
                    return
            pause_s = _pause_after(run.text)

    def _run(self, run: Run, voice: str, options: Options, stop: StopFlag) -> Iterator[tuple[F32Mono, float]]:
        """Raw signals of one run, each with the pause after it."""
        if run.language == "en" and voice == "heart":
            if self._english is None:
                raise EngineUnavailable("engine_failed", engine=self.name, reason="not loaded")
            words, seed = for_hibari(run.text), options.seed + run.start
            for signal, sentence in self._english.speak(words, options.speed, seed):
                yield signal, _PAUSES["." if sentence else ","]
        elif self._espeak is not None:  # `_check` refused it otherwise
            yield espeak.speak(self._espeak, run.text, run.language, options.speed, stop), 0.0


def _pause_after(text: str) -> float:
    return _PAUSES.get(text.rstrip(" \t\"'”’」』】）)]")[-1:], 0.0)


def _overlapped(before: F32Mono, part: F32Mono) -> F32Mono:
    """`before` then `part`, the last and first 15 ms on top of each other; both are faded there."""
    n = min(_OVERLAP, len(before), len(part))
    middle = before[len(before) - n :] + part[:n]
    return np.concatenate([before[: len(before) - n], middle, part[n:]])


def _chunks(signal: F32Mono) -> Iterator[F32Mono]:
    for start in range(0, len(signal), _CHUNK):
        yield signal[start : start + _CHUNK]
