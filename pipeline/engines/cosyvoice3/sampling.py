"""Repetition-aware sampling on the device, without a sync and without a generator's state.

Each request draws its uniform numbers once from its seed (`draws`); a step is then a pure function of logits,
recent ids and two numbers, the same on every device and in every batch. Algorithm: "VALL-E 2"
repetition-aware sampling as CosyVoice 3 uses it; the removal of the repeated id before the fallback draw is
part of this version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from pipeline.engines.cosyvoice3.config import LlmConfig

NO_ID = -1
"""Fills the window of recent ids at the start."""


@dataclass(frozen=True, slots=True)
class RasParams:
    """`window * tau` occurrences among the last `window` ids call for the fallback draw."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    tau: float = 0.1

    @classmethod
    def of(cls, c: LlmConfig) -> RasParams:
        return cls(c.top_p, c.top_k, c.window, c.tau)


Pick: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(weights [B, V], uniform [B]) -> index [B]."""


class Sampler(Protocol):
    """Picks ids. `logits` float32 [B, V] (-inf is forbidden), `recent` [B, W], `draws` float64 [B, 2] ->
    [B]."""

    def __call__(self, logits: torch.Tensor, recent: torch.Tensor, draws: torch.Tensor) -> torch.Tensor: ...


def draws(seed: int, steps: int) -> torch.Tensor:
    """float64 [steps, 2] uniform numbers of one request; the CPU generator, so that every device has the
    same."""
    return torch.rand(steps, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nucleus(probabilities: torch.Tensor, p: RasParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates [B, K] in falling order (ties keep id order) and their probabilities, 0 beyond the nucleus.

    A candidate is taken while the sum of those before it is below `top_p`; K is at most `top_k`. Sorting all
    of them took 1.4 ms of a step with four rows; the best few are found first and only they are put in order.
    """
    ids = probabilities.topk(min(2 * p.top_k, probabilities.shape[-1]), dim=-1, sorted=False).indices
    ids = ids.sort(dim=-1).values
    ordered, place = probabilities.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    ordered, ids = ordered[:, : p.top_k], ids.gather(1, place[:, : p.top_k])
    before = ordered.cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    return ids, ordered * (before < p.top_p)


def pick(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Inverse CDF: an index [B] in proportion to `weights` [B, V], never one of weight 0. `uniform` [B] in
    [0, 1)."""
    cumulative = weights.double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    # `<=` steps over leading zero weights; the clamp is for a target that rounding puts at the end
    index = (cumulative <= target).sum(-1)
    last = weights.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(index, last)


@dataclass(frozen=True, slots=True)
class RasSampler:
    """The model's own sampler. `pick` is replaceable so that a test can draw as upstream does
    (torch.multinomial)."""

    params: RasParams
    pick: Pick = pick

    def __call__(self, logits: torch.Tensor, recent: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        probabilities = logits.softmax(-1)
        ids, weights = nucleus(probabilities, self.params)
        first = ids.gather(1, self.pick(weights, draws[:, 0])[:, None])
        repeated = (recent[:, -self.params.window :] == first).sum(-1) >= self.params.window * self.params.tau
        others = probabilities.scatter(1, first, 0.0)
        second = self.pick(others, draws[:, 1])
        return torch.where(repeated, second, first[:, 0])


@dataclass(frozen=True, slots=True)
class GreedySampler:
    """The likeliest speech code, control ids never: the rule of the goldens and of the self-test."""

    codes: int

    def __call__(self, logits: torch.Tensor, recent: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        return logits[:, : self.codes].argmax(-1)
