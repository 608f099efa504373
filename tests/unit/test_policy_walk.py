"""Random memory walks with faults: what the ladder must never do, and that it finds back to rest."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from daemon import decide, policy, renewal
from daemon.decide import Mind
from daemon.levels import Level, brink_bytes
from daemon.policy import Act, PolicyState, Rung
from daemon.renewal import Renew, Soothe
from daemon.sample import OwnProcess, RamReading, Sample, VramReading
from pipeline.clock import FakeClock
from pipeline.profile import Config
from tests.unit.workcount import lines_run

MIB = 1024**2
TOTAL = 4096 * MIB
CARD = 6144 * MIB
CONFIG = Config()
SETTLE = {
    Rung.TRIM: CONFIG.guard.settle.trim_s,
    Rung.UNLOAD: CONFIG.guard.settle.unload_s,
    Rung.RECYCLE_WEB: CONFIG.guard.settle.drain_s,
    Rung.DRAIN: CONFIG.guard.settle.drain_s,
    Rung.KILL: CONFIG.guard.settle.kill_s,
}


@dataclass
class Machine:
    """A small world that carries acts out, badly: trims free nothing, drains hang, the dead stay."""

    rng: random.Random
    clock: FakeClock = field(default_factory=FakeClock)
    others: int = 1000 * MIB
    others_vram: int = 500 * MIB
    own: dict[int, OwnProcess] = field(default_factory=dict)
    dying: dict[int, float] = field(default_factory=dict)
    next_pid: int = 100
    stride: int = 300
    trims_help: float = 0.5
    idleness: float = 0.5
    born: dict[int, float] = field(default_factory=dict)
    update_waits: bool = False
    growth: int = 0

    def spawn(self, name: str, rss: int, vram: int | None) -> None:
        self.next_pid += 1
        self.own[self.next_pid] = OwnProcess(name, self.next_pid, rss, vram, base_rss_bytes=rss)
        self.born[self.next_pid] = self.clock.mono

    def sample(self) -> Sample:
        own = tuple(
            replace(
                p,
                age_s=self.clock.mono - self.born[p.pid],
                keep=self.update_waits and p.vram_bytes is not None,
            )
            for p in self.own.values()
        )
        used = self.others + sum(p.rss_bytes or 0 for p in own)
        vram_used = self.others_vram + sum(p.vram_bytes or 0 for p in own)
        ram = RamReading(max(0, TOTAL - used), TOTAL) if self.rng.random() > 0.05 else None
        vram = VramReading(max(0, CARD - vram_used), CARD) if self.rng.random() > 0.1 else None
        if vram is not None and self.rng.random() < 0.5:
            rates = self.rng.choice([None, 0.1, 0.9])
            vram = replace(vram, utilisation_ratio=rates, throttle_reasons=self.rng.choice([None, 0, 0x40]))
        if self.rng.random() < 0.03 and own:
            own = (replace(own[0], rss_bytes=None), *own[1:])
        work = None if self.rng.random() < 0.1 else sum(not p.idle for p in own)
        return Sample(ram, vram, own, work)

    def live(self) -> None:
        """A tick of the world."""
        self.others = min(TOTAL, max(0, self.others + self.rng.randint(-self.stride, self.stride) * MIB))
        self.others_vram = min(
            CARD, max(0, self.others_vram + self.rng.randint(-self.stride, self.stride) * MIB)
        )
        for pid, process in list(self.own.items()):
            if self.dying.get(pid, float("inf")) <= self.clock.mono or self.rng.random() < 0.005:
                del self.own[pid]
                self.dying.pop(pid, None)
                continue
            more = (self.growth + self.rng.randint(-self.stride // 15, self.stride // 7)) * MIB
            grown = max(MIB, (process.rss_bytes or 0) + more)
            vram = process.vram_bytes
            self.own[pid] = replace(
                process,
                rss_bytes=grown,
                vram_bytes=None if vram is None else max(0, vram + self.rng.randint(-50, 80) * MIB),
                idle=self.rng.random() < self.idleness if not process.is_web else True,
            )
        names = {p.name for p in self.own.values()}
        if "web" not in names:
            self.spawn("web", 150 * MIB, None)
        if self.rng.random() < 0.1:
            for name, rss, vram in (("worker:builtin", 250, None), ("worker:cosyvoice3", 900, 2500)):
                if name not in names:
                    self.spawn(name, rss * MIB, None if vram is None else vram * MIB)

    def carry_out(self, act: Act) -> None:
        for pid in act.pids:
            if pid not in self.own:
                continue
            if act.rung is Rung.TRIM:
                if self.rng.random() < self.trims_help:
                    p = self.own[pid]
                    self.own[pid] = replace(p, rss_bytes=round((p.rss_bytes or 0) * 0.8))
            elif act.rung is Rung.KILL:
                self.dying[pid] = self.clock.mono + self.rng.choice([0.0, 0.5])
            elif self.rng.random() < 0.7:
                self.dying[pid] = self.clock.mono + self.rng.random() * act.deadline_s
            # else: it ignores us


def check_act(before: PolicyState, state: PolicyState, act: Act, sample: Sample, now: float) -> None:
    """What must hold of every act."""
    flying = before.in_flight
    present = {p.pid for p in sample.own}
    assert set(act.pids) <= present, "acts on what is gone"
    assert sample.free_bytes(act.resource) is not None, "acts on an unknown reading"
    assert sample.own_bytes(act.resource) is not None, "acts without knowing whose memory it is"
    assert act.resource not in state.foreign, "acts on what others do"
    assert state.of(act.resource).level is not Level.OK, "acts without pressure"
    if act.rung is Rung.KILL:
        assert state.of(act.resource).level is Level.CRITICAL
        largest = max(p.bytes_of(act.resource) or 0 for p in sample.own)
        target = next(p for p in sample.own if p.pid == act.pids[0])
        assert target.bytes_of(act.resource) == largest
    if act.rung is Rung.TRIM:
        assert state.of(act.resource).level is Level.LOW
    assert state.in_flight is not None and state.in_flight.act == act
    if flying is not None:
        ended = now >= (flying.settle_until if flying.settle_until is not None else flying.overdue_at)
        assert ended or act.rung > flying.act.rung, "two actions in flight"
        if not ended:
            levels, reading = state.of(act.resource), sample.ram if act.resource == "ram" else sample.vram
            guard = CONFIG.guard.ram if act.resource == "ram" else CONFIG.guard.vram
            assert levels.level is Level.CRITICAL, "at LOW there is time to see what came of it"
            assert reading is not None
            brink = (sample.free_bytes(act.resource) or 0) < brink_bytes(guard, reading.total_bytes)
            same = flying.critical and flying.act.resource == act.resource
            assert brink or not same, "at CRITICAL a piece has its time until the brink"


def check_renewal(before: Mind, mind: Mind, wish: Renew | Soothe, sample: Sample, now: float) -> None:
    """A planned restart is nothing urgent: it disturbs nobody and is sure of what it sees."""
    target = next(p for p in sample.own if p.pid == wish.pid)
    assert target.name == wish.name and target.ready and not target.keep
    if isinstance(wish, Soothe):
        return
    assert sample.work == 0 and all(p.idle for p in sample.own), "somebody is being served"
    assert mind.policy.level is Level.OK and mind.policy.in_flight is None, "the ladder is at work"
    quiet = before.renewal.quiet_since
    assert quiet is not None and now - quiet >= CONFIG.guard.quiet_s
    last = before.renewal.renewed_at
    assert last is None or now - last >= renewal.AGAIN_S, "one at a time"
    if wish.reason == "age":
        assert target.age_s >= CONFIG.guard.age_max_s


def walk(seed: int, ticks: int) -> int:
    rng = random.Random(seed)
    slow = rng.random() < 0.3  # days in steps of half a minute: planned restarts are reached
    world = Machine(rng, stride=10 if slow else rng.choice([10, 60, 300]))
    world.update_waits = rng.random() < 0.2
    if slow:
        world.idleness, world.growth, ticks = 0.97, rng.choice([0, 1, 3]), ticks * 5
    mind, acts = Mind(), 0
    last: tuple[Act, float] | None = None
    for _ in range(ticks):
        gap = rng.random()
        if gap < 0.01:
            world.clock.advance(rng.choice([15.0, 3600.0, 9 * 86400.0]))  # stopped, suspended, forgotten
        world.clock.advance(30.0 if slow else 0.25 if mind.policy.level is not Level.OK else 1.0)
        world.live()
        sample, now = world.sample(), world.clock.mono
        before = mind
        mind, out = decide.step(mind, sample, now, CONFIG)
        found = [o for o in out if isinstance(o, Act)]
        assert len(found) <= 1
        for act in found:
            check_act(before.policy, mind.policy, act, sample, now)
            if last is not None and act.rung <= last[0].rung:
                assert now - last[1] >= min(SETTLE[last[0].rung], 0.25), "no time to settle"
                if last[0].rung is act.rung:
                    assert now - last[1] >= SETTLE[act.rung]
            last = (act, now)
            acts += 1
            world.carry_out(act)
        for wish in (o for o in out if isinstance(o, Renew | Soothe)):
            check_renewal(before, mind, wish, sample, now)
            if isinstance(wish, Renew):
                assert not found, "two at once"
                world.dying[wish.pid] = now
                acts += 1
    state = mind.policy
    # The pressure goes: back to rest, whatever state it was in.
    for _ in range(60):
        world.clock.advance(2.0)
        rest = Sample(RamReading(3900 * MIB, TOTAL), VramReading(6000 * MIB, CARD), ())
        state, out = policy.step(state, rest, world.clock.mono, CONFIG)
        assert not any(isinstance(o, Act) for o in out)
    assert state.level is Level.OK and state.in_flight is None
    assert not state.tried and not state.foreign and state.rest_until is None
    return acts


def test_random_walks_keep_the_rules(rounds: Callable[[int, int], int]) -> None:
    """200 walks, 10,000 with --long."""

    @settings(max_examples=rounds(200, 10_000), deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(1, 80))
    def walks(seed: int, ticks: int) -> None:
        walk(seed, ticks)

    walks()


def test_the_walks_do_reach_planned_restarts() -> None:
    seen: set[str] = set()
    for seed in range(60):
        if seen:
            break
        rng = random.Random(seed)
        world, mind = Machine(rng, stride=10, growth=1, idleness=0.99, others=500 * MIB), Mind()
        for _ in range(300):
            world.clock.advance(30.0)
            world.live()
            mind, out = decide.step(mind, world.sample(), world.clock.mono, CONFIG)
            for wish in (o for o in out if isinstance(o, Renew)):
                seen.add(wish.reason)
                world.dying[wish.pid] = 0.0
    assert seen == {"creep"}


def test_the_walks_do_reach_every_rung() -> None:
    """Otherwise the rules above would hold for nothing."""
    seen: set[Rung] = set()
    for seed in range(40):
        if seen == set(Rung):
            break
        rng = random.Random(seed)
        # Calm enough to stay at LOW for a while, and with trims that free nothing.
        world, state = Machine(rng, stride=20, trims_help=0.0, idleness=0.2, others=2500 * MIB), PolicyState()
        for _ in range(400):
            world.clock.advance(0.25)
            world.live()
            state, out = policy.step(state, world.sample(), world.clock.mono, CONFIG)
            for act in (o for o in out if isinstance(o, Act)):
                seen.add(act.rung)
                world.carry_out(act)
    assert seen == set(Rung)


def test_a_decision_is_little_work_and_no_more_after_a_day() -> None:
    """84 lines when this was written: some 20 microseconds of each second at rest."""
    state, sample = PolicyState(), Machine(random.Random(1)).sample()
    work = []
    for tick in range(2000):
        held = state

        def decide(held: PolicyState = held, tick: int = tick) -> None:
            nonlocal state
            state, _ = policy.step(held, sample, float(tick) * 43.2, CONFIG)

        work.append(lines_run(decide, "policy"))
    assert 0 < max(work[100:]) <= 300
    assert max(work[-100:]) <= max(work[100:200])
