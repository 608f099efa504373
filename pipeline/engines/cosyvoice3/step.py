"""One decoding step after another on one KV cache: plainly, or as a CUDA graph.

On a card a step is some 600 small kernels, and starting them takes longer than running them. `FixedStep` runs
at fixed shapes and addresses (`Llm.step_at`), so it can be captured once and replayed; it serves up to `rows`
sequences, unused rows compute for nobody. Whatever goes wrong with a capture leads to the plain step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch

from pipeline.engines.cosyvoice3.llm import KvCache, Llm

log = logging.getLogger(__name__)

CAPACITY_ROUND = 1024
"""Capacities of captured steps are rounded up to this, so that one capture serves most texts."""

MOST_ROWS = 16
WARM_RUNS = 3

Body: TypeAlias = Callable[[], torch.Tensor]
Capture: TypeAlias = Callable[[Body], Body]
"""A function at fixed addresses -> one that does the same, quicker. Raises RuntimeError."""


class Stepper(Protocol):
    """Decodes on `cache`, whose first rows are the sequences still going on."""

    cache: KvCache

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """The last token of each of the first rows -> logits float32 [rows, speech_rows]."""
        ...


class PlainStep:
    """Each step as the model is written."""

    def __init__(self, llm: Llm, rows: int, capacity: int) -> None:
        self._llm = llm
        self.cache = llm.new_cache(rows, capacity)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        return self._llm.logits(self._llm.step(self.cache, self._llm.embed_speech(tokens)))


class FixedStep:
    """Steps of always `rows` rows. Raises RuntimeError when the capture fails or computes something else."""

    def __init__(self, llm: Llm, rows: int, capacity: int, capture: Capture) -> None:
        self._llm, self.rows = llm, rows
        self.cache = llm.new_cache(rows, capacity)
        self._tables = llm.rotary  # the capture reads these addresses, the model may go on to longer tables
        with torch.inference_mode():
            self._input = torch.zeros(2, rows, dtype=torch.long, device=llm.device)  # token ids, positions
            self._run = capture(self._body)
            self._check()

    def _body(self) -> torch.Tensor:
        return self._llm.step_at(self.cache, self._input[0], self._input[1])

    def _check(self) -> None:
        """The captured step against the plain one, on an empty cache."""
        self._input[0] = torch.arange(self.rows, device=self._llm.device) % self._llm.config.codes
        found, wanted = self._run().clone(), self._body()
        scale = float(wanted.abs().max())
        if not float((found - wanted).abs().max()) <= 1e-2 * scale:  # not: a NaN is no agreement
            raise RuntimeError("the captured step computes something else")

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        live = len(tokens)
        positions = self.cache.lengths[:live]
        if max(positions) >= self.cache.capacity:
            raise ValueError(f"{max(positions) + 1} positions of {self.cache.capacity}")
        rest = [0] * (self.rows - live)
        self._input.copy_(torch.tensor([[*tokens, *rest], [*positions, *rest]]))
        for row in range(live):
            self.cache.lengths[row] += 1
        return self._run()[:live]


def cuda_capture(body: Body) -> Body:
    """`body` as a CUDA graph. Raises RuntimeError (torch's out-of-memory is one)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # lazy set-up of libraries must be over before the capture
        for _ in range(WARM_RUNS):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


class Steppers:
    """Gives each decoding its stepper; keeps one captured step for the next.

    A kept step owns the KV cache that it was captured on, so two decodings at a time would spoil each other:
    while one is out, others step plainly.
    """

    def __init__(self, llm: Llm, capture: Capture | None) -> None:
        self._llm, self._capture = llm, capture
        self._kept: FixedStep | None = None
        self._out = False
        self.trouble = ""

    def take(self, rows: int, capacity: int) -> Stepper:
        """A stepper for `rows` sequences of at most `capacity` positions; hand it back with `put`."""
        if self._capture is None or self._out or rows > MOST_ROWS:
            return PlainStep(self._llm, rows, capacity)
        kept = self._kept
        if kept is None or kept.rows < rows or kept.rows > 2 * rows or kept.cache.capacity < capacity:
            kept = self._made(rows, capacity)
            if kept is None:
                return PlainStep(self._llm, rows, capacity)
        kept.cache.lengths[:] = [0] * kept.rows
        self._kept, self._out = kept, True
        return kept

    def put(self, stepper: Stepper) -> None:
        """The decoding is over."""
        if stepper is self._kept:
            self._out = False

    def forget(self) -> None:
        """Give the kept step's memory back, unless it is in use."""
        if not self._out:
            self._kept = None

    def _made(self, rows: int, capacity: int) -> FixedStep | None:
        assert self._capture is not None
        self._kept = None  # its memory may be needed for the new one
        rows = 1 << (rows - 1).bit_length()
        capacity = -(-capacity // CAPACITY_ROUND) * CAPACITY_ROUND
        try:
            return FixedStep(self._llm, rows, capacity, self._capture)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._capture, self.trouble = None, str(error)
            log.warning("decoding goes on without a CUDA graph: %s", error)
            return None
