"""Text ids to samples: language model, flow and vocoder joined, whole or streamed. Called by `engine`.

Whole: all tokens, one flow call without a mask, the vocoder on windows. Streamed: chunks of 25 tokens, then
50, 100, aligned to the mask's blocks; the hop starts anew with every request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F

from pipeline.codes import CosydError
from pipeline.engines.base import MAX_CHUNK_SAMPLES, F32Mono, StopFlag
from pipeline.engines.cosyvoice3.bistream import BistreamRequest, decode_bistream
from pipeline.engines.cosyvoice3.decode import Emitted, Ended, LlmRequest, PrefixMemo, decode_many
from pipeline.engines.cosyvoice3.flow import FlowRequest
from pipeline.engines.cosyvoice3.model import Model
from pipeline.engines.cosyvoice3.plan import Effort
from pipeline.engines.cosyvoice3.sampling import Sampler
from pipeline.engines.cosyvoice3.text import without_control
from pipeline.engines.cosyvoice3.vocoder_stream import VocoderStream
from pipeline.jobs import has_words

SILENT = frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323})
SILENT_RUN = 5
FIRST_HOP, LARGEST_HOP = 25, 100
NORMAL = Effort()


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice on the device: `tokens`, `mel` [2n, bands], `speaker` [192]. The flow always gets all three."""

    tokens: tuple[int, ...]
    mel: torch.Tensor
    speaker: torch.Tensor


class SilenceFilter:
    """After five silent tokens in a row further ones are dropped until another comes."""

    def __init__(self) -> None:
        self._run = 0

    def keeps(self, token: int) -> bool:
        self._run = self._run + 1 if token in SILENT else 0
        return self._run <= SILENT_RUN


def change_speed(mel: torch.Tensor, speed: float) -> torch.Tensor:
    """Resize [T, bands] to int(T / speed) frames, linear, half-pixel centres."""
    if speed == 1.0:
        return mel
    frames = max(int(mel.shape[0] / speed), 1)
    return F.interpolate(mel.t()[None], size=frames, mode="linear", align_corners=False)[0].t()


def _pieces(samples: torch.Tensor) -> Iterator[F32Mono]:
    """At most a second at a time."""
    whole = np.ascontiguousarray(samples.numpy(), np.float32)
    for at in range(0, len(whole), MAX_CHUNK_SAMPLES):
        yield whole[at : at + MAX_CHUNK_SAMPLES]


def _vocode(model: Model, mel: torch.Tensor, stop: StopFlag, window_frames: int) -> Iterator[F32Mono]:
    for window in VocoderStream(model.vocoder, window_frames).push(mel, final=True):
        yield from _pieces(window)
        if stop.is_set():
            return


def speak_tokens(
    model: Model,
    voice: Voice,
    tokens: Sequence[int],
    stop: StopFlag,
    speed: float = 1.0,
    effort: Effort = NORMAL,
) -> Iterator[F32Mono]:
    """The samples of given speech tokens (also voice conversion: the source's tokens in another voice)."""
    for _, piece in _voice_many(model, voice, [(0, tokens)], stop, speed, effort):
        yield piece


def _voice_many(
    model: Model,
    voice: Voice,
    ready: Sequence[tuple[int, Sequence[int]]],
    stop: StopFlag,
    speed: float,
    effort: Effort,
) -> Iterator[tuple[int, F32Mono]]:
    """Segments (index, tokens) through one batch of the flow and, one after another, the vocoder."""
    parts = [FlowRequest(tuple(tokens), voice.speaker, voice.tokens, voice.mel) for _, tokens in ready]
    mels = model.flow.mel_many(parts, stop, together=effort.branches_together)
    for (index, _), mel in zip(ready, mels or (), strict=False):
        for piece in _vocode(model, change_speed(mel, speed), stop, effort.window):
            yield index, piece


def speak_many(
    model: Model,
    voice: Voice,
    requests: Sequence[LlmRequest],
    sampler: Sampler,
    stop: StopFlag,
    *,
    speed: float = 1.0,
    memo: PrefixMemo | None = None,
    effort: Effort = NORMAL,
) -> Iterator[tuple[int, F32Mono]]:
    """Several segments decoded together (index, samples). The first that has all its tokens is voiced at
    once, later ones as soon as there are `effort.voiced_together` of them.

    Raises CosydError(bad_take) when a segment got no tokens at all.
    """
    tokens: list[list[int]] = [[] for _ in requests]
    filters = [SilenceFilter() for _ in requests]
    waiting: list[tuple[int, list[int]]] = []
    room = 1
    for event in _decode_in_groups(model, requests, sampler, stop, memo, effort):
        if isinstance(event, Emitted):
            if filters[event.index].keeps(event.token):
                tokens[event.index].append(event.token)
            continue
        if event.reason == "stopped":
            return
        if not tokens[event.index]:
            raise CosydError("bad_take", reason="no speech tokens")
        waiting.append((event.index, tokens[event.index]))
        tokens[event.index] = []
        if len(waiting) == room:
            yield from _voice_many(model, voice, waiting, stop, speed, effort)
            waiting, room = [], effort.voiced_together
    if waiting:
        yield from _voice_many(model, voice, waiting, stop, speed, effort)


def _decode_in_groups(
    model: Model,
    requests: Sequence[LlmRequest],
    sampler: Sampler,
    stop: StopFlag,
    memo: PrefixMemo | None,
    effort: Effort,
) -> Iterator[Emitted | Ended]:
    """`decode_many` over at most `effort.decoded_together` requests at a time; indices are those of all."""
    steppers = model.steppers if effort.graph else None
    for first in range(0, len(requests), effort.decoded_together):
        group = requests[first : first + effort.decoded_together]
        for event in decode_many(model.llm, group, sampler, stop, memo=memo, steppers=steppers):
            yield replace(event, index=first + event.index)


class ChunkPlan:
    """When a chunk may be made, and from which tokens. Pure: token counts in, cuts out."""

    def __init__(self, prompt_tokens: int, lookahead: int) -> None:
        self._hop, self._lookahead = FIRST_HOP, lookahead
        self._pad = -prompt_tokens % FIRST_HOP
        self.offset = 0

    def due(self, count: int) -> int | None:
        """With `count` tokens there: how many of them the next flow call takes (look-ahead included), or
        None."""
        need = self.offset + self._hop + (self._pad if self.offset == 0 else 0) + self._lookahead
        return need if count >= need else None

    def done(self, taken: int) -> None:
        """That call was made."""
        self.offset = taken - self._lookahead
        self._hop = min(LARGEST_HOP, 2 * self._hop)


def speak_streaming(
    model: Model,
    voice: Voice,
    request: LlmRequest,
    sampler: Sampler,
    stop: StopFlag,
    *,
    memo: PrefixMemo | None = None,
    effort: Effort = NORMAL,
) -> Iterator[F32Mono]:
    """Samples while the tokens are made. Raises CosydError(bad_take) when there are none."""
    events = _decode_in_groups(model, [request], sampler, stop, memo, effort)
    tokens = (event.token for event in events if isinstance(event, Emitted))
    yield from _speak_as_they_come(model, voice, tokens, stop, effort)


def speak_pieces(
    model: Model,
    voice: Voice,
    request: BistreamRequest,
    pieces: Iterable[str],
    sampler: Sampler,
    stop: StopFlag,
    *,
    effort: Effort = NORMAL,
) -> Iterator[F32Mono]:
    """Samples while the text still comes: `pieces` may block, each is turned into ids by itself, as upstream
    does. Raises CosydError: `empty_text` when nothing came that can be spoken; `bad_take` when the model
    stops before the text does, or the text goes on after `request.max_tokens`."""
    heard = False

    def ids() -> Iterator[int]:
        nonlocal heard
        for piece in pieces:
            spoken = without_control(piece)
            heard = heard or has_words(spoken)
            yield from model.tokenizer.encode(spoken)
        if not heard and not stop.is_set():
            raise CosydError("empty_text")

    def speech() -> Iterator[int]:
        count = 0
        for token in decode_bistream(model.llm, request, ids(), sampler, stop):
            count += 1
            yield token
        if count >= request.max_tokens:
            raise CosydError("bad_take", reason="too long for one stream")

    yield from _speak_as_they_come(model, voice, speech(), stop, effort)


def _speak_as_they_come(
    model: Model, voice: Voice, speech: Iterator[int], stop: StopFlag, effort: Effort
) -> Iterator[F32Mono]:
    """Speech tokens to samples, a chunk as soon as there are enough. Raises CosydError(bad_take) for none."""
    tokens: list[int] = []
    silence = SilenceFilter()
    plan = ChunkPlan(len(voice.tokens), model.flow.config.lookahead)
    out = VocoderStream(model.vocoder, effort.window)
    ratio = model.flow.config.ratio

    def chunk(count: int, *, final: bool) -> Iterator[F32Mono]:
        part = FlowRequest(
            tuple(tokens[:count]), voice.speaker, voice.tokens, voice.mel, final=final, streaming=not final
        )
        mel = model.flow.mel(part, stop, together=effort.branches_together)
        if mel is None:
            return
        for window in out.push(mel[ratio * plan.offset :], final=final):
            yield from _pieces(window)

    for token in speech:
        if silence.keeps(token):
            tokens.append(token)
            if (count := plan.due(len(tokens))) is not None:
                yield from chunk(count, final=False)
                plan.done(count)
    if stop.is_set():
        return
    if not tokens:
        raise CosydError("bad_take", reason="no speech tokens")
    yield from chunk(len(tokens), final=True)
