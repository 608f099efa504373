"""The rungs of the memory ladder: what each is called, whom it would hit, and how long it may take. Pure.

Used by `daemon.policy`, which decides when.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from daemon.levels import Level
from daemon.sample import OwnProcess, Resource, Sample
from pipeline.profile import Config

DRAIN_CRITICAL_S = 10.0
"""The longest a piece may still take at CRITICAL, above the brink."""
RECYCLE_S = 30.0
"""How long the old web may go on with its streams."""
GROWN = 1.2
"""A web that is this much larger than when it was new is worth a recycle."""
LEAST_SHARE = 0.05
"""A worker with less of what we hold is not ended for memory below KILL, which takes the largest."""
WEB_START_BYTES = 250 * 1024**2
"""A second web for the moment of the change; a recycle that would need more than there is helps nobody."""


class Rung(IntEnum):
    """The higher, the harder."""

    TRIM = 1
    UNLOAD = 2
    RECYCLE_WEB = 3
    DRAIN = 4
    KILL = 5


@dataclass(frozen=True, slots=True)
class Act:
    """Something to do now to `targets` (names of children, with the pids meant, so that nothing else is
    hit)."""

    rung: Rung
    resource: Resource
    targets: tuple[str, ...]
    pids: tuple[int, ...]
    deadline_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LevelChanged:
    """A resource went from one level to another."""

    resource: Resource
    old: Level
    new: Level
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Judged:
    """An action came to its end; `freed_bytes` None when a reading was missing."""

    act: Act
    helped: bool
    freed_bytes: int | None


@dataclass(frozen=True, slots=True)
class Foreign:
    """Pressure that is not ours began."""

    resource: Resource
    own_bytes: int
    used_bytes: int


Output = Act | LevelChanged | Judged | Foreign


def targets_of(rung: Rung, sample: Sample, resource: Resource, critical: bool) -> list[OwnProcess]:
    """Whom a rung would hit, the largest first. Sizes that are unknown are nobody's turn, nor is a worker
    that holds next to nothing of what we hold: its end would be waited for while another one leaks."""
    sized = sorted(
        (p for p in sample.own if (p.bytes_of(resource) or 0) > 0),
        key=lambda p: p.bytes_of(resource) or 0,
        reverse=True,
    )
    # A worker that could not be had back is given up for nothing less than CRITICAL.
    least = LEAST_SHARE * sum(p.bytes_of(resource) or 0 for p in sized)
    workers = [
        p for p in sized if not p.is_web and (critical or not p.keep) and (p.bytes_of(resource) or 0) >= least
    ]
    if rung is Rung.TRIM:
        return [p for p in sized if p.ready]
    if rung is Rung.UNLOAD:
        return [p for p in workers if p.ready and p.idle][:1]
    if rung is Rung.RECYCLE_WEB:
        if resource != "ram" or sample.ram is None or sample.ram.available_bytes < WEB_START_BYTES:
            return []
        grown = [
            p
            for p in sized
            if p.is_web
            and p.ready
            and (p.base_rss_bytes is None or (p.rss_bytes or 0) > GROWN * p.base_rss_bytes)
        ]
        return grown[:1]
    if rung is Rung.DRAIN:
        return [p for p in workers if p.ready and not p.idle][:1]
    return sized[:1]


def seconds_for(rung: Rung, critical: bool) -> float:
    """How long the targets of a rung may take to end by themselves."""
    if rung is Rung.DRAIN:
        return DRAIN_CRITICAL_S if critical else 6 * DRAIN_CRITICAL_S
    return RECYCLE_S if rung is Rung.RECYCLE_WEB else 0.0


def settle_s(rung: Rung, config: Config) -> float:
    """How long after its targets are gone (or, for a trim, were asked) a rung is judged."""
    settle = config.guard.settle
    seconds = {Rung.UNLOAD: settle.unload_s, Rung.KILL: settle.kill_s, Rung.TRIM: settle.trim_s}
    return seconds.get(rung, settle.drain_s) * config.timeout_factor


def overdue_s(rung: Rung, deadline_s: float, config: Config, critical: bool) -> float:
    """How long a rung may be under way in all. At CRITICAL a new page is not waited for longer than a piece
    of speech."""
    settle = config.guard.settle
    more = {
        Rung.TRIM: settle.trim_s,
        Rung.UNLOAD: settle.unload_s,
        Rung.RECYCLE_WEB: config.deadlines.start_s,
        Rung.DRAIN: settle.drain_s,
        Rung.KILL: settle.kill_s,
    }
    seconds = deadline_s + more[rung]
    if critical and rung is Rung.RECYCLE_WEB:
        seconds = DRAIN_CRITICAL_S
    return seconds * config.timeout_factor
