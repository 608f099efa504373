"""All that the guard decides about one sample, as one pure function: the ladder, planned restarts, the card.

`daemon.guard` calls it with what it has read; `daemon.replay` with what a trace holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemon import gpu_health, policy, renewal, rungs
from daemon.gpu_health import Health
from daemon.policy import PolicyState
from daemon.renewal import RenewalState
from daemon.sample import Sample
from pipeline.profile import Config


@dataclass(frozen=True, slots=True)
class ConditionChanged:
    """The card works, but became slower than it should be, or well again (words of `gpu_states`)."""

    old: str
    new: str


Decision = rungs.Output | renewal.Output | ConditionChanged


@dataclass(frozen=True, slots=True)
class Mind:
    """All that is remembered from one look to the next."""

    policy: PolicyState = field(default_factory=PolicyState)
    renewal: RenewalState = field(default_factory=RenewalState)
    health: Health = field(default_factory=Health)


def step(mind: Mind, sample: Sample, now: float, config: Config) -> tuple[Mind, list[Decision]]:
    """One tick."""
    found: list[Decision] = []
    ladder, acts = policy.step(mind.policy, sample, now, config)
    found += acts
    planned, wishes = renewal.step(mind.renewal, sample, ladder, now, config)
    found += wishes
    busy = any(not p.idle for p in sample.own if p.vram_bytes)
    health = gpu_health.step(mind.health, sample.vram, busy, now)
    if health.word != mind.health.word:
        found.append(ConditionChanged(mind.health.word, health.word))
    return Mind(ladder, planned, health), found
