"""Whether a card that answers also works as it should: too hot, held back by its power supply, starved. Pure.

A condition is named after it has held for a while, and taken back after it has been gone for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemon import gpu_states
from daemon.sample import VramReading

HEAT = 0x20 | 0x40
"""NVML clocks event reasons: software and hardware thermal slowdown."""
BRAKE = 0x80
"""The power supply asks for less. A software power cap (0x4) is how cards are meant to run."""
SLOWDOWN = 0x08
"""Hardware slowdown for one of both; older drivers do not say which."""
HOLD_S = 30.0
STARVED_HOLD_S = 60.0
STARVED_BELOW = 0.30


@dataclass(frozen=True, slots=True)
class Health:
    """`word` is what is told; `seen` since `since` is what the readings say."""

    word: str = gpu_states.OK
    seen: str = gpu_states.OK
    since: float = 0.0


def condition(reading: VramReading, busy: bool) -> str:
    """What one reading says. Fields that a card does not support say nothing."""
    reasons = reading.throttle_reasons or 0
    if reasons & HEAT:
        return gpu_states.HOT
    if reasons & BRAKE or reasons & SLOWDOWN:
        return gpu_states.POWER_BRAKE
    if busy and reading.utilisation_ratio is not None and reading.utilisation_ratio < STARVED_BELOW:
        return gpu_states.STARVED
    return gpu_states.OK


def step(health: Health, reading: VramReading | None, busy: bool, now: float) -> Health:
    """The next state; an unknown reading changes nothing, and forgets how long something was seen."""
    if reading is None:
        return replace(health, seen=health.word, since=now)
    seen = condition(reading, busy)
    if not busy and health.word == gpu_states.STARVED:
        return Health(gpu_states.OK, seen, now)  # there is no work it could be starved of
    if seen != health.seen:
        health = replace(health, seen=seen, since=now)
    hold_s = STARVED_HOLD_S if seen == gpu_states.STARVED else HOLD_S
    return replace(health, word=seen) if seen != health.word and now - health.since >= hold_s else health
