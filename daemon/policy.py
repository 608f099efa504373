"""The memory ladder (DESIGN 5): which one thing to do about pressure, and whether it helped. Pure.

    TRIM (all) -> UNLOAD an idle worker -> RECYCLE_WEB -> DRAIN a busy worker -> KILL the larger of both

`step(state, sample, now, config)` gives the next state and a list of what to do; `daemon.guard` does it and
feeds back what came of it in the next sample. One action is in flight, and each has a settle time, after
which it is judged. A higher rung replaces a lower one, never the reverse, when things got worse since that
began: CRITICAL was entered, or the brink was (half of the free memory at which CRITICAL begins), where
nothing is left to wait with. Above the brink a piece being spoken has its ten seconds. At LOW each rung is
tried once, then the ladder rests (a restart loop frees nothing twice). KILL is for CRITICAL only. A fall
straight to CRITICAL does not start at TRIM. Pressure that is not ours is named, not acted on. Unknown is
never acted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from daemon.levels import Level, LevelState, brink_bytes, step_level
from daemon.rungs import (
    Act,
    Foreign,
    Judged,
    LevelChanged,
    Output,
    Rung,
    overdue_s,
    seconds_for,
    settle_s,
    targets_of,
)
from daemon.sample import Resource, Sample
from pipeline.profile import Config

__all__ = [
    "Act",
    "Foreign",
    "Judged",
    "Level",
    "LevelChanged",
    "Output",
    "PolicyState",
    "Rung",
    "abandon",
    "step",
    "still_needed",
]

REST_S = 300.0
"""Pause of the ladder at an unchanged level once every rung was tried."""
GAP_S = 10.0
"""After so long without a look (a stopped process, a suspended machine) what held before no longer counts."""
FOREIGN_EXIT = 1.25
"""Pressure is ours again when our share is so much above the line below which it was others'."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """The action under way. `settle_until` None: its targets are still there, `overdue_at` bounds the
    wait. `critical`: it began at CRITICAL."""

    act: Act
    before_free: int | None
    before_own: int | None
    started_at: float
    settle_until: float | None
    overdue_at: float
    critical: bool = False


@dataclass(frozen=True, slots=True)
class PolicyState:
    """All that the policy remembers. `tried` are rungs used since the level last changed for the worse."""

    ram: LevelState = field(default_factory=LevelState)
    vram: LevelState = field(default_factory=LevelState)
    in_flight: InFlight | None = None
    tried: frozenset[Rung] = frozenset()
    rest_until: float | None = None
    foreign: frozenset[Resource] = frozenset()
    stepped_at: float | None = None

    @property
    def level(self) -> Level:
        """The worst level that is known; what maintenance and the cadence look at."""
        return max((s.level for s in (self.ram, self.vram) if s.known), default=Level.OK)

    def of(self, resource: Resource) -> LevelState:
        """The level state of one resource."""
        return self.ram if resource == "ram" else self.vram


def step(state: PolicyState, sample: Sample, now: float, config: Config) -> tuple[PolicyState, list[Output]]:
    """One tick: levels, the end of an action in flight, and at most one new action."""
    out: list[Output] = []
    state = _after_gap(state, now)
    state = _levels(state, sample, now, config, out)
    state = _foreign(state, sample, config, out)
    state = _judge(state, sample, now, config, out)
    resource = _worst(state, sample)
    if resource is None:
        if state.level is Level.OK and _all_known(state, sample):
            state = replace(state, tried=frozenset(), rest_until=None)
        return state, out
    if state.rest_until is not None and now < state.rest_until:
        return state, out
    act = _choose(state, sample, resource)
    flying = state.in_flight
    if flying is not None and (
        act is None
        or act.rung <= flying.act.rung
        or not _may_replace(state, flying, resource, sample, config)
    ):
        return state, out
    if act is None:
        # Every rung was tried: look again after a rest. At CRITICAL the next chance is a changed sample.
        rest = None if state.of(resource).level is Level.CRITICAL else now + REST_S
        tried = state.tried - {Rung.KILL} if rest is None else frozenset()
        return replace(state, rest_until=rest, tried=tried), out
    out.append(act)
    return _launch(state, act, sample, now, config), out


def _after_gap(state: PolicyState, now: float) -> PolicyState:
    """Hold times count looks, not the time for which nobody looked."""
    if state.stepped_at is None or now - state.stepped_at <= GAP_S:
        return replace(state, stepped_at=now)
    return replace(
        state, stepped_at=now,
        ram=replace(state.ram, low_since=None, critical_since=None),
        vram=replace(state.vram, low_since=None, critical_since=None),
    )  # fmt: skip


def still_needed(state: PolicyState, act: Act, fresh: Sample, now: float, config: Config) -> bool:
    """Look again just before a kill: is the resource, read this instant, still CRITICAL, and the target
    there?"""
    levels = _step_levels(state, fresh, now, config)[0 if act.resource == "ram" else 1]
    present = {process.pid for process in fresh.own}
    return levels.known and levels.level is Level.CRITICAL and set(act.pids) <= present


def abandon(state: PolicyState, now: float) -> PolicyState:
    """The shell did not carry the action out after all (it was no longer needed)."""
    return replace(state, in_flight=None, tried=state.tried - {Rung.KILL})


def _step_levels(
    state: PolicyState, sample: Sample, now: float, config: Config
) -> tuple[LevelState, LevelState]:
    ram, vram = sample.ram, sample.vram
    return (
        step_level(
            state.ram, ram.available_bytes if ram else None, ram.total_bytes if ram else None,
            config.guard.ram, now, stall_ratio=ram.stall_ratio if ram else None,
        ),
        step_level(
            state.vram, vram.free_bytes if vram else None, vram.total_bytes if vram else None,
            config.guard.vram, now,
        ),
    )  # fmt: skip


def _levels(state: PolicyState, sample: Sample, now: float, config: Config, out: list[Output]) -> PolicyState:
    ram, vram = _step_levels(state, sample, now, config)
    worse = False
    names: tuple[Resource, Resource] = ("ram", "vram")
    for name, old, new in zip(names, (state.ram, state.vram), (ram, vram), strict=True):
        if old.level is not new.level:
            out.append(LevelChanged(name, old.level, new.level, sample.free_bytes(name)))
            worse = worse or new.level > old.level
    # A rung that was tried at LOW may be tried again once at CRITICAL, where it is allowed less time.
    return replace(
        state, ram=ram, vram=vram,
        tried=frozenset() if worse else state.tried, rest_until=None if worse else state.rest_until,
    )  # fmt: skip


def _foreign(state: PolicyState, sample: Sample, config: Config, out: list[Output]) -> PolicyState:
    foreign: set[Resource] = set()
    names: tuple[Resource, Resource] = ("ram", "vram")
    for name in names:
        levels = state.of(name)
        own, used = sample.own_bytes(name), sample.used_bytes(name)
        if levels.level is Level.OK:
            continue
        if own is None or used is None or not levels.known:
            foreign |= {name} & state.foreign  # unknown: what was said stays said
        elif used > 0 and own < config.guard.own_share_min * used * (
            FOREIGN_EXIT if name in state.foreign else 1.0
        ):
            foreign.add(name)
            if name not in state.foreign:
                out.append(Foreign(name, own, used))
    return replace(state, foreign=frozenset(foreign))


def _all_known(state: PolicyState, sample: Sample) -> bool:
    return state.ram.known and (state.vram.known or state.vram.level is Level.OK)


def _worst(state: PolicyState, sample: Sample) -> Resource | None:
    """The resource to act on: under pressure, known, and known to be ours. RAM before VRAM at one level."""
    found: Resource | None = None
    names: tuple[Resource, Resource] = ("ram", "vram")
    for name in names:
        levels = state.of(name)
        if not levels.known or levels.level is Level.OK or name in state.foreign:
            continue
        if sample.own_bytes(name) is None:
            continue
        if found is None or levels.level > state.of(found).level:
            found = name
    return found


def _may_replace(
    state: PolicyState, flying: InFlight, resource: Resource, sample: Sample, config: Config
) -> bool:
    """A higher rung may cut a lower one short when it became worse since that began. Else there is time to
    see what comes of it: a piece that is finished need not be spoken again."""
    if state.of(resource).level is not Level.CRITICAL:
        return False
    return not flying.critical or resource != flying.act.resource or _at_the_brink(sample, resource, config)


def _at_the_brink(sample: Sample, resource: Resource, config: Config) -> bool:
    reading = sample.ram if resource == "ram" else sample.vram
    if reading is None:
        return False
    guard = config.guard.ram if resource == "ram" else config.guard.vram
    return (sample.free_bytes(resource) or 0) < brink_bytes(guard, reading.total_bytes)


def _choose(state: PolicyState, sample: Sample, resource: Resource) -> Act | None:
    critical = state.of(resource).level is Level.CRITICAL
    floor = state.in_flight.act.rung if state.in_flight else Rung.TRIM - 1
    for rung in Rung:
        if rung <= floor or rung in state.tried:
            continue
        if (rung is Rung.TRIM and critical) or (rung is Rung.KILL and not critical):
            continue
        targets = targets_of(rung, sample, resource, critical)
        if targets:
            names, pids = tuple(t.name for t in targets), tuple(t.pid for t in targets)
            return Act(rung, resource, names, pids, seconds_for(rung, critical))
    return None


def _launch(state: PolicyState, act: Act, sample: Sample, now: float, config: Config) -> PolicyState:
    settle_until = now + settle_s(act.rung, config) if act.rung is Rung.TRIM else None
    critical = state.of(act.resource).level is Level.CRITICAL
    flying = InFlight(
        act, sample.free_bytes(act.resource), _bytes_of_pids(sample, act), now, settle_until,
        now + overdue_s(act.rung, act.deadline_s, config, critical), critical,
    )  # fmt: skip
    return replace(state, in_flight=flying, tried=state.tried | {act.rung}, rest_until=None)


def _bytes_of_pids(sample: Sample, act: Act) -> int | None:
    """What the targets hold, 0 for those that are gone; None when one that is there is unknown."""
    sizes = [p.bytes_of(act.resource) for p in sample.own if p.pid in act.pids]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _judge(state: PolicyState, sample: Sample, now: float, config: Config, out: list[Output]) -> PolicyState:
    flying = state.in_flight
    if flying is None:
        return state
    gone = not {p.pid for p in sample.own} & set(flying.act.pids)
    if flying.settle_until is None and gone:
        flying = replace(flying, settle_until=now + settle_s(flying.act.rung, config))
        return replace(state, in_flight=flying)
    over = now >= (flying.settle_until if flying.settle_until is not None else flying.overdue_at)
    if not over:
        return state
    after = _bytes_of_pids(sample, flying.act)
    before = flying.before_own
    freed = None if before is None or after is None else before - after
    helped = freed is not None and before is not None and freed >= config.guard.trim_min_gain * max(1, before)
    out.append(Judged(flying.act, helped, freed))
    # KILL may be used again: the largest now is another one.
    return replace(state, in_flight=None, tried=state.tried - {Rung.KILL})
