"""Bidirectional streaming: text ids come piece by piece, speech tokens go out in between.

Five text ids are appended for each fifteen speech tokens (the model's mix ratio); a fill id asks for the next
five. `plan_prompt` is the pure part: which text and prompt speech the prefill interleaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pipeline.codes import CosydError
from pipeline.engines.base import StopFlag
from pipeline.engines.cosyvoice3.llm import KvCache, Llm
from pipeline.engines.cosyvoice3.sampling import NO_ID, Sampler, draws

MAX_STEPS = 30 * 60 * 25
"""Half an hour of speech in one stream; the cache grows in blocks up to what was asked for."""
BLOCK = 512


@dataclass(frozen=True, slots=True)
class BistreamRequest:
    """A prompt for streamed text. `prompt_text` holds the end-of-prompt id `end_of_prompt`."""

    prompt_text: tuple[int, ...]
    prompt_speech: tuple[int, ...]
    end_of_prompt: int
    seed: int = 0
    max_tokens: int = 2000


def split_prompt(ids: Sequence[int], end_of_prompt: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is prefilled at once (up to and including end-of-prompt) and what goes into the text buffer."""
    if end_of_prompt not in ids:
        raise CosydError("bad_value", field="instruct", reason="out_of_range", value="no end of prompt")
    cut = list(ids).index(end_of_prompt) + 1
    return tuple(ids[:cut]), tuple(ids[cut:])


def first_fill(prompt_speech: int, mix_speech: int) -> int:
    """How many ids may be emitted before the first fill is forced."""
    return (prompt_speech // mix_speech + 1) * mix_speech - prompt_speech


class _Stream:
    """The state of one stream: cache, pending embeddings, sampling window."""

    def __init__(self, llm: Llm, request: BistreamRequest, sampler: Sampler) -> None:
        self.llm, self.request, self.sampler = llm, request, sampler
        self.cache = llm.new_cache(1, BLOCK)
        self.pending: list[torch.Tensor] = []
        self.draws = draws(request.seed, request.max_tokens + 1).to(llm.device)
        self.recent = torch.full((1, llm.config.window), NO_ID, dtype=torch.long, device=llm.device)
        self.emitted = 0  # ids that came out, fills counted
        self.next_fill = first_fill(len(request.prompt_speech), llm.config.mix_speech)

    def append_text(self, ids: Sequence[int]) -> None:
        self.pending.append(self.llm.embed_text(ids))

    def append_speech(self, ids: Sequence[int]) -> None:
        self.pending.append(self.llm.embed_speech(ids))

    def _reserve(self, positions: int) -> None:
        if positions <= self.cache.capacity:
            return
        grown: KvCache = self.llm.new_cache(1, -(-positions // BLOCK) * BLOCK)
        n = self.cache.lengths[0]
        grown.keys[:, :, :, :n] = self.cache.keys[:, :, :, :n]
        grown.values[:, :, :, :n] = self.cache.values[:, :, :, :n]
        grown.lengths = [n]
        self.cache = grown

    @torch.inference_mode()
    def next_id(self, *, final: bool) -> int:
        """Feed what is pending and choose one id; before the end of the text a due fill is forced."""
        fed = torch.cat(self.pending)
        self.pending.clear()
        self._reserve(self.cache.lengths[0] + fed.shape[0])
        hidden = self.llm.extend(self.cache, 0, fed)[None]
        fill = self.llm.config.fill
        if not final and self.emitted == self.next_fill:
            chosen = fill
            self.next_fill += self.llm.config.mix_speech + 1
        else:
            uniform = self.draws[min(self.emitted, len(self.draws) - 1)][None]
            chosen = int(self.sampler(self.llm.logits(hidden), self.recent, uniform))
            if chosen == fill and not final:
                self.next_fill = self.emitted + self.llm.config.mix_speech + 1
        self.emitted += 1
        self.recent = self.recent.roll(-1, 1)
        self.recent[0, -1] = chosen
        return chosen


def decode_bistream(
    llm: Llm, request: BistreamRequest, text: Iterable[int], sampler: Sampler, stop: StopFlag
) -> Iterator[int]:
    """Speech tokens while `text` ids arrive (`text` may block). Ends at a stop id after the text's end.

    Raises CosydError(bad_take) when the model stops before the text does, as upstream calls an error.
    """
    c = llm.config
    stream = _Stream(llm, request, sampler)
    head, rest = split_prompt(request.prompt_text, request.end_of_prompt)
    stream.append_speech([c.sos])
    stream.append_text(head)
    waiting, prompt = list(rest), list(request.prompt_speech)
    spoken, last = 0, c.sos
    after_fill, fresh = False, True

    def run(final: bool) -> Iterator[int]:
        """Decode until a fill (text goes on) or a stop id (text is over)."""
        nonlocal spoken, last
        while spoken < request.max_tokens and not stop.is_set():
            chosen = stream.next_id(final=final)
            if chosen == c.fill and not final:
                return
            if chosen >= c.codes:
                if final:
                    return
                raise CosydError("bad_take", reason="stopped before the text's end")
            spoken, last = spoken + 1, chosen
            yield chosen
            stream.append_speech([chosen])

    def ready() -> bool:
        """Something may be decoded now; takes the next text group where the model waits for it."""
        if prompt:
            return False
        if not after_fill and not fresh:
            return True
        if len(waiting) < c.mix_text:
            return False
        stream.append_text(waiting[: c.mix_text])
        del waiting[: c.mix_text]
        return True

    for token in text:
        waiting.append(token)
        if stop.is_set() or spoken >= request.max_tokens:
            return
        while prompt and len(waiting) >= c.mix_text:
            stream.append_text(waiting[: c.mix_text])
            stream.append_speech(prompt[: c.mix_speech])
            del waiting[: c.mix_text], prompt[: c.mix_speech]
            fresh = False
        if ready():
            fresh = False
            yield from run(final=False)
            after_fill = True
    if after_fill:
        # upstream feeds the last speech token a second time here; the model's answer depends on it
        stream.append_speech([last])
    stream.append_text(waiting)
    stream.append_speech([c.task])
    yield from run(final=True)
