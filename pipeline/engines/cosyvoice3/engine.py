"""CosyVoice 3 as an Engine (CONTRACTS 8): load with self-test, enrol, synthesize, trim, close.

Where the model lies: COSYD_MODEL_DIR, else `models/Fun-CosyVoice3-0.5B` in the state folder; the converted
weights go to `cache/cosyvoice3` beside it. torch is imported when the engine loads, so that asking for
capabilities costs nothing.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
)
from pipeline.engines.cosyvoice3.enrol import encode_voice, source_tokens
from pipeline.engines.cosyvoice3.errors import ENGINE, problem
from pipeline.engines.cosyvoice3.heap import drop_mapped, keep_heap, return_heap
from pipeline.engines.cosyvoice3.plan import (
    Effort,
    LoadOptions,
    effort_of,
    options_of,
    safer_options,
    smaller_options,
)
from pipeline.engines.cosyvoice3.recovery import free_all, leaner_each_time, memory_errors
from pipeline.engines.cosyvoice3.starting import Watched, plan_here, rss_bytes, self_test
from pipeline.model_files import LANGUAGES, MODEL_NAME, model_folder
from pipeline.paths import default_state_root
from pipeline.planning.environment import PRIMITIVES
from pipeline.planning.memory import Plan
from pipeline.profile import Config

if TYPE_CHECKING:
    from pipeline.engines.cosyvoice3.model import Model
    from pipeline.engines.cosyvoice3.synthesis import Voice

log = logging.getLogger(__name__)

Loader: TypeAlias = "Callable[[Path, Path, LoadOptions], Model]"
"""(official folder, cache, options) -> the parts. `model.load_model`; the bench draws its weights instead."""


class CosyVoice3Engine:
    """One loaded checkpoint. Called from one thread."""

    name = ENGINE

    def __init__(
        self, folder: Path | None = None, cache: Path | None = None, loader: Loader | None = None
    ) -> None:
        self._folder, self._cache, self._loader = folder, cache, loader
        self._model: Model | None = None
        self._mapped = Path(os.devnull)
        self._limit_s, self._reference_s = 25.0, 10.0
        self._effort = Effort()
        self.plan: Plan | None = None
        self._memo: Any = None
        self._voices: dict[str, Voice] = {}
        self.notices: list[str] = []
        self.on_progress: Callable[[], None] | None = None
        """Called as a load or a segment moves on (conversion, each token, each step): the heartbeat."""

    def capabilities(self) -> Capabilities:
        model = self._model
        return Capabilities(
            modes=frozenset(("zero_shot", "cross_lingual", "instruct", "convert")),
            languages=LANGUAGES,
            longest_segment_s=self._limit_s,
            instruct=True,
            model=MODEL_NAME,
            device=model.options.device if model else "cpu",
            dtype=f"{model.options.llm}+{model.options.flow}" if model else "",
        )

    def load(self, profile: Config, stop: StopFlag) -> Footprint:
        """Map or convert the weights and speak a test. Raises EngineUnavailable, OutOfMemory."""
        for name, value in PRIMITIVES.items():  # for who starts no supervisor; read at the first product
            os.environ.setdefault(name, value)
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise problem("no_torch", "torch", str(error)) from error
        keep_heap()
        folder = self._folder or model_folder()
        cache = self._cache or default_state_root() / "cache" / ENGINE
        self._mapped = cache
        self.notices.clear()
        self.plan = self.plan_here(profile)
        choice = self.plan.choice
        self._limit_s, self._reference_s = choice.longest_s, choice.reference_s
        self._effort = effort_of(choice)
        options: LoadOptions | None = options_of(choice)
        tried: set[LoadOptions] = set()  # safer is larger, so the two ways out could lead in a circle
        while options is not None and options not in tried and not stop.is_set():
            tried.add(options)
            trouble, following = self._try(folder, cache, options, stop)
            if not trouble:
                break
            self._notice(f"{options.llm}+{options.flow}: {trouble}")
            options = following
            self.close()
        if self._model is None:
            raise problem("self_test", MODEL_NAME, "; ".join(self.notices) or "stopped")
        self._give_back()
        return Footprint(rss_bytes(), self.vram_bytes())

    def plan_here(self, profile: Config) -> Plan:
        """What fits into the memory that is free now; what had to be left out is in `notices`."""
        return plan_here(profile, self._notice)

    def _try(
        self, folder: Path, cache: Path, options: LoadOptions, stop: StopFlag
    ) -> tuple[str, LoadOptions | None]:
        """Load and test: what was wrong ("" is nothing), and what to try then. Raises OutOfMemory when there
        is nothing smaller."""
        from pipeline.engines.cosyvoice3.decode import PrefixMemo

        try:
            self._model = self._load_once(folder, cache, options)
            self._memo = PrefixMemo()
            watched = self._watched(stop)
            watched.is_set()
            trouble = self._self_test(watched)
        except OutOfMemory as error:
            if (smaller := smaller_options(options)) is None:
                raise
            return f"out of {error.resource}", smaller
        return trouble, safer_options(options)

    def _watched(self, stop: StopFlag) -> StopFlag:
        """`stop`, looked at with the heartbeat listening: on a slow CPU a segment takes minutes to its first
        sound, and must not be taken for one that hangs."""
        return Watched(stop, self.on_progress) if self.on_progress is not None else stop

    def _notice(self, text: str) -> None:
        self.notices.append(text)
        log.warning("%s", text)

    def _load_once(self, folder: Path, cache: Path, options: LoadOptions) -> Model:
        from pipeline.engines.cosyvoice3.cache import progress_to
        from pipeline.engines.cosyvoice3.model import load_model

        with memory_errors(), progress_to(self.on_progress):
            return (self._loader or load_model)(folder, cache, options)

    def _self_test(self, stop: StopFlag) -> str:
        """ "" when the first sentence sounds, else what is wrong. Raises OutOfMemory."""
        return self_test(self._ready(), self._effort, stop)

    def enrol(self, audio: F32Mono, rate: int, transcript: str | None) -> VoiceFeatures:
        """Encode a reference once for all time. Raises CosydError(bad_audio), EngineUnavailable."""
        folder = self._folder or model_folder()
        model = self._model
        arrays = encode_voice(
            folder,
            audio,
            rate,
            ratio=model.flow.config.ratio if model else 2,
            codes=model.flow.config.codes if model else None,
            max_seconds=self._reference_s,
        )
        digest = hashlib.sha256(np.ascontiguousarray(audio, np.float32).tobytes() + str(rate).encode())
        return_heap()
        return VoiceFeatures(arrays.to_mapping(), digest.hexdigest(), transcript)

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        """Chunks of at most a second; on a GPU they come while the rest is made."""
        from pipeline.engines.cosyvoice3.asking import segment_request
        from pipeline.engines.cosyvoice3.synthesis import speak_streaming

        model = self._ready()
        if model.options.device == "cpu" or options.speed != 1.0:
            for _, chunk in self.synthesize_many([segment], voice, options, stop):
                yield chunk
            return
        stop = self._watched(stop)
        ready, features = self._voice(voice)
        request = segment_request(model, segment, features, ready, options)

        def run(effort: Effort) -> Iterator[tuple[int, F32Mono]]:
            for chunk in speak_streaming(
                model, ready, request, self._sampler(), stop, memo=self._memo, effort=effort
            ):
                yield 0, chunk

        for _, chunk in leaner_each_time(run, self._effort, self._go_on_leaner):
            yield chunk

    def synthesize_many(
        self, segments: Sequence[Segment], voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[tuple[int, F32Mono]]:
        """Several segments decoded together, each yielded when its tokens are complete."""
        from pipeline.engines.cosyvoice3.asking import segment_request
        from pipeline.engines.cosyvoice3.synthesis import speak_many

        model = self._ready()
        stop = self._watched(stop)
        ready, features = self._voice(voice)
        requests = [segment_request(model, s, features, ready, options) for s in segments]

        def run(effort: Effort) -> Iterator[tuple[int, F32Mono]]:
            return speak_many(
                model,
                ready,
                requests,
                self._sampler(),
                stop,
                speed=options.speed,
                memo=self._memo,
                effort=effort,
            )

        for index, chunk in leaner_each_time(run, self._effort, self._go_on_leaner):
            yield segments[index].idx, chunk
        self._give_back()

    def synthesize_pieces(
        self, pieces: Iterable[str], voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        """Chunks while the text still comes in pieces; `pieces` may block. Pieces are spoken as they are:
        nothing is normalised across their borders. Speed 1 only; an out-of-memory is not gone on from.

        Raises CosydError: `empty_text`, `bad_take` when the model stops before the text does; OutOfMemory.
        """
        from pipeline.engines.cosyvoice3.prompts import effective_mode, pieces_request
        from pipeline.engines.cosyvoice3.synthesis import speak_pieces

        model = self._ready()
        stop = self._watched(stop)
        ready, features = self._voice(voice)
        request = pieces_request(
            model.tokenizer,
            effective_mode(options.mode, features.transcript, options.instruct),
            ready.tokens,
            transcript=features.transcript,
            instruct=options.instruct,
            seed=options.seed,
        )
        with memory_errors():
            yield from speak_pieces(model, ready, request, pieces, self._sampler(), stop, effort=self._effort)
        return_heap()

    def convert(
        self, audio: F32Mono, rate: int, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        """At most 30 s of a recording, said in `voice`: its speech tokens go to the flow, past the language
        model. Raises CosydError(bad_audio), EngineUnavailable, OutOfMemory."""
        from pipeline.engines.cosyvoice3.synthesis import speak_tokens

        model = self._ready()
        stop = self._watched(stop)
        ready, _ = self._voice(voice)
        codes = model.flow.config.codes
        with memory_errors():
            tokens = source_tokens(self._folder or model_folder(), audio, rate, codes=codes)

        def run(effort: Effort) -> Iterator[tuple[int, F32Mono]]:
            for piece in speak_tokens(model, ready, tokens, stop, options.speed, effort):
                yield 0, piece

        for _, chunk in leaner_each_time(run, self._effort, self._go_on_leaner):
            yield chunk
        return_heap()

    def _go_on_leaner(self, effort: Effort, resource: str) -> None:
        """After an out-of-memory: from now on with less at once, until the next load."""
        self._effort = effort
        self.notices.append(f"out of {resource}: {effort}")
        self.trim()

    def _give_back(self) -> None:
        """Between two texts: free heap to the system, and on a CPU the mapped weights to the page cache, that
        others may need more; the next text maps them again in a few milliseconds."""
        return_heap()
        if self._model is not None and self._model.options.device == "cpu":
            drop_mapped(self._mapped)

    def vram_bytes(self) -> int | None:
        """What torch's allocator holds on the card, for the heartbeat; None on a CPU."""
        if self._model is None or self._model.options.device == "cpu":
            return None
        import torch

        return int(torch.cuda.memory_reserved())

    def trim(self) -> None:
        """Forget prompts and voices on the device, give free memory back."""
        self._voices.clear()
        if self._memo is not None:
            self._memo.ids, self._memo.prefix = (), None
        if self._model is not None:
            self._model.steppers.forget()
            free_all()

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.trim()
        self._model, self._memo = None, None
        gc.collect()
        return_heap()

    def _ready(self) -> Model:
        if self._model is None:
            raise problem("self_test", MODEL_NAME, "not loaded")
        return self._model

    def _sampler(self) -> Any:
        from pipeline.engines.cosyvoice3.sampling import RasParams, RasSampler

        return RasSampler(RasParams.of(self._ready().llm.config))

    def _voice(self, voice: VoiceFeatures | str) -> tuple[Voice, VoiceFeatures]:
        """The voice's arrays as tensors, checked. Raises CosydError(unknown_voice | bad_value)."""
        from pipeline.engines.cosyvoice3.asking import ready_voice

        if isinstance(voice, str):
            raise CosydError("unknown_voice", voice=voice[:80], known="", nearest="")
        if (known := self._voices.get(voice.content_hash)) is not None and voice.content_hash:
            return known, voice
        ready = ready_voice(self._ready(), voice)
        if voice.content_hash:
            self._voices = {voice.content_hash: ready}  # one voice at a time: the next segment has the same
        return ready, voice
