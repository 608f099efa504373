"""Whether a worker may be started now: its footprint plus a reserve must fit. Pure.

The reserve is the LOW threshold, so that a start does not make the pressure that would end it. What is
unknown refuses nobody (an unreadable card is not a full card).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daemon.policy import PolicyState
from daemon.sample import Resource, Sample
from pipeline.profile import Config

MIB = 1024**2
DEFAULT_RSS_BYTES = {"builtin": 300 * MIB}
OTHER_RSS_BYTES = 200 * MIB
RETRY_AFTER_S = 15.0


@dataclass(frozen=True, slots=True)
class Need:
    """What an engine holds when loaded, learned from its last `ready` or a guess; None: nothing is known."""

    rss_bytes: int | None
    vram_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of `admission{engine}`."""

    admit: bool
    code: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: float | None = None


def default_need(engine: str) -> Need:
    """A first guess, before the engine was ever seen ready here."""
    return Need(DEFAULT_RSS_BYTES.get(engine, OTHER_RSS_BYTES))


def admit(
    need: Need,
    sample: Sample,
    state: PolicyState,
    config: Config,
    foreign: Mapping[Resource, tuple[str, int]],
) -> Verdict:
    """`foreign` names the largest program that is not ours, for a resource under foreign pressure."""
    names: tuple[Resource, Resource] = ("ram", "vram")
    for resource in names:
        if resource in state.foreign:
            name, size = foreign.get(resource, ("?", 0))
            return Verdict(
                False, "foreign_memory", {"resource": resource, "name": name, "bytes": size}, RETRY_AFTER_S
            )
        wanted = need.rss_bytes if resource == "ram" else need.vram_bytes
        free = sample.free_bytes(resource)
        if not wanted or free is None:
            continue
        reading = sample.ram if resource == "ram" else sample.vram
        guard = config.guard.ram if resource == "ram" else config.guard.vram
        reserve = guard.low_enter.bytes_of(reading.total_bytes) if reading else 0
        short = wanted + reserve - free
        if short > 0:
            return Verdict(
                False,
                "waiting_memory",
                {"resource": resource, "short_bytes": short, "need_bytes": wanted, "free_bytes": free},
                RETRY_AFTER_S,
            )
    return Verdict(True)
