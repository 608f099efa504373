"""Text ids to speech tokens: several requests decoded together, each as if it were alone.

A generator of events, so that streaming, batching and tests share one loop. Raises nothing but CosydError for
bad ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from pipeline.codes import CosydError
from pipeline.engines.base import StopFlag
from pipeline.engines.cosyvoice3.llm import KvCache, Llm, Prefix
from pipeline.engines.cosyvoice3.sampling import NO_ID, Sampler, draws
from pipeline.engines.cosyvoice3.step import Stepper, Steppers

MIN_RATIO, MAX_RATIO = 2, 20
REPEAT_LIMIT = 50
"""The same id for two seconds on end is no speech: the request ends with `repetition`."""

Reason = Literal["stop", "length", "repetition", "stopped"]


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """What to speak, as ids. `text` alone counts for the length limits: min 2, max 20 speech tokens for each
    id.

    `enforce_min` False keeps upstream's quirk: before the minimum it forbids sos instead of the stop ids.
    """

    text: tuple[int, ...]
    prompt_text: tuple[int, ...] = ()
    prompt_speech: tuple[int, ...] = ()
    seed: int = 0
    enforce_min: bool = True
    max_tokens: int | None = None

    @property
    def shortest(self) -> int:
        return MIN_RATIO * len(self.text)

    @property
    def longest(self) -> int:
        longest = MAX_RATIO * len(self.text)
        return longest if self.max_tokens is None else min(longest, self.max_tokens)

    @property
    def positions(self) -> int:
        """Cache positions it may need: sos, texts, task, prompt speech and every token but the last."""
        return 2 + len(self.prompt_text) + len(self.text) + len(self.prompt_speech) + self.longest


@dataclass(frozen=True, slots=True)
class Emitted:
    """Request `index` has a further speech token."""

    index: int
    token: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Request `index` is over."""

    index: int
    reason: Reason


@dataclass(slots=True)
class _Row:
    index: int
    request: LlmRequest
    draws: torch.Tensor
    emitted: int = 0
    last: int = NO_ID
    run: int = 0


@dataclass(slots=True)
class PrefixMemo:
    """Keys and values of the last prompt text, so that segments of one text prefill it once."""

    ids: tuple[int, ...] = ()
    prefix: Prefix | None = field(default=None, repr=False)


def check_request(llm: Llm, request: LlmRequest) -> None:
    """Raises CosydError(empty_text | bad_value) before any work is done."""
    c = llm.config
    if not request.text:
        raise CosydError("empty_text")
    for name, ids, top in (
        ("text", request.text + request.prompt_text, c.text_rows),
        ("voice", request.prompt_speech, c.codes),
    ):
        if ids and not 0 <= min(ids) <= max(ids) < top:
            raise CosydError(
                "bad_value", field=name, reason="out_of_range", value="token id", low=0, high=top - 1
            )


def prefill_embeddings(llm: Llm, request: LlmRequest) -> torch.Tensor:
    """[sos] [prompt text + text] [task] [prompt speech], float32 [n, hidden]."""
    c = llm.config
    return torch.cat(
        [
            llm.embed_speech([c.sos]),
            llm.embed_text(request.prompt_text + request.text),
            llm.embed_speech([c.task]),
            llm.embed_speech(request.prompt_speech),
        ]
    )


def prefill(llm: Llm, cache: KvCache, row: int, request: LlmRequest, memo: PrefixMemo | None) -> torch.Tensor:
    """Fill `row` and return the last hidden state; [sos] + prompt text comes from `memo` when it is the
    same."""
    embeddings = prefill_embeddings(llm, request)
    shared = 1 + len(request.prompt_text)
    cache.lengths[row] = 0
    if (
        memo is not None
        and memo.prefix is not None
        and request.prompt_text
        and memo.ids == request.prompt_text
    ):
        llm.restore(cache, row, memo.prefix)
        return llm.extend(cache, row, embeddings[shared:])
    hidden = llm.extend(cache, row, embeddings)
    if memo is not None and request.prompt_text:
        memo.ids, memo.prefix = request.prompt_text, llm.snapshot(cache, row, shared)
    return hidden


def _forbid(logits: torch.Tensor, row: _Row, llm: Llm, line: int) -> None:
    c = llm.config
    if row.emitted < row.request.shortest:
        if row.request.enforce_min:
            logits[line, c.codes :] = -torch.inf
        else:
            logits[line, c.sos] = -torch.inf


@torch.inference_mode()
def _prefill_all(
    llm: Llm, cache: KvCache, requests: Sequence[LlmRequest], memo: PrefixMemo | None
) -> torch.Tensor:
    """Logits after each request's prefill [B, speech_rows]."""
    return llm.logits(torch.stack([prefill(llm, cache, row, r, memo) for row, r in enumerate(requests)]))


@torch.inference_mode()
def _choose(
    llm: Llm, logits: torch.Tensor, rows: Sequence[_Row], recent: torch.Tensor, sampler: Sampler
) -> list[int]:
    for line, row in enumerate(rows):
        _forbid(logits, row, llm, line)
    uniform = torch.stack([row.draws[row.emitted] for row in rows])
    chosen: list[int] = sampler(logits, recent, uniform).tolist()
    return chosen


def decode_many(
    llm: Llm,
    requests: Sequence[LlmRequest],
    sampler: Sampler,
    stop: StopFlag,
    *,
    memo: PrefixMemo | None = None,
    window: int | None = None,
    steppers: Steppers | None = None,
) -> Iterator[Emitted | Ended]:
    """Decode `requests` together. Rows that end leave the batch; each request's tokens do not depend on the
    others. `steppers` may give a captured step; without it each step is a plain one."""
    for request in requests:
        check_request(llm, request)
    given = steppers or Steppers(llm, None)
    stepper = given.take(len(requests), max(r.positions for r in requests))
    try:
        yield from _decode(llm, stepper, requests, sampler, stop, memo, window)
    finally:
        given.put(stepper)


def _decode(
    llm: Llm,
    stepper: Stepper,
    requests: Sequence[LlmRequest],
    sampler: Sampler,
    stop: StopFlag,
    memo: PrefixMemo | None,
    window: int | None,
) -> Iterator[Emitted | Ended]:
    cache = stepper.cache
    window = llm.config.window if window is None else window
    rows = [_Row(i, r, draws(r.seed, r.longest + 1).to(llm.device)) for i, r in enumerate(requests)]
    recent = torch.full((len(rows), max(window, 1)), NO_ID, dtype=torch.long, device=llm.device)
    logits = _prefill_all(llm, cache, requests, memo)
    while rows:
        if stop.is_set():
            yield from (Ended(row.index, "stopped") for row in rows)
            return
        chosen = _choose(llm, logits, rows, recent, sampler)
        over: list[int] = []
        for line, (row, token) in enumerate(zip(rows, chosen, strict=True)):
            if token >= llm.config.codes:
                over.append(line)
                yield Ended(row.index, "stop")
                continue
            row.run = row.run + 1 if token == row.last else 1
            row.last, row.emitted = token, row.emitted + 1
            yield Emitted(row.index, token)
            if row.emitted >= row.request.longest or row.run >= REPEAT_LIMIT:
                over.append(line)
                yield Ended(row.index, "repetition" if row.run >= REPEAT_LIMIT else "length")
        recent = recent.roll(-1, 1)
        recent[:, -1] = torch.tensor(chosen, device=llm.device)
        for line in reversed(over):  # the last row takes the place of one that ended
            last = len(rows) - 1
            if line != last:
                cache.copy_row(last, line)
                rows[line], chosen[line], recent[line] = rows[last], chosen[last], recent[last]
            rows.pop(), chosen.pop()
            recent = recent[:-1]
        if rows:
            logits = stepper.step(chosen)
