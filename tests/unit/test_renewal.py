"""Planned restarts: growth is foretold and soothed before it is renewed, in a quiet minute."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from daemon import creep, renewal
from daemon.levels import Level, LevelState
from daemon.policy import PolicyState
from daemon.renewal import Output, Predicted, Renew, RenewalState, Soothe
from daemon.sample import OwnProcess, RamReading, Sample, VramReading
from pipeline.profile import Config

MIB, GIB, HOUR = 1024**2, 1024**3, 3600.0
TOTAL = 4 * GIB
CONFIG = Config()
LINE = CONFIG.guard.ram.low_enter.bytes_of(TOTAL)


def test_the_slope_is_not_led_astray_by_outliers() -> None:
    rng = random.Random(5)
    points = [(60.0 * i, 1_000_000 * i + (rng.choice([0, 10**10]) if i % 5 == 0 else 0)) for i in range(60)]
    assert creep.slope(points) == pytest.approx(1_000_000 / 60, rel=0.1)


@pytest.mark.parametrize(
    ("name", "sizes", "grows"),
    [
        ("steady growth", [500 * MIB + i * MIB for i in range(60)], True),
        ("noise", [500 * MIB + (i * 7919 % 13) * MIB for i in range(60)], False),
        ("one step", [500 * MIB] * 30 + [700 * MIB] * 30, False),
        ("growth that has ended", [500 * MIB + min(i, 20) * 5 * MIB for i in range(60)], False),
        ("growth of nothing", [500 * MIB + i * 1000 for i in range(60)], False),
        ("shrinking", [500 * MIB - i * MIB for i in range(60)], False),
        ("too few", [500 * MIB + i * 50 * MIB for i in range(10)], False),
        (
            "growth with jobs between",
            [500 * MIB + i * MIB + (i % 4 == 0) * 300 * MIB for i in range(60)],
            True,
        ),
    ],
)
def test_what_counts_as_growth(name: str, sizes: list[int], grows: bool) -> None:
    assert (creep.growth([(60.0 * i, size) for i, size in enumerate(sizes)]) is not None) is grows


class Run:
    """One worker that grows, sampled once in ten seconds."""

    def __init__(
        self, *, rate_mib_min: float = 2.0, work: int | None = 0, free: int = LINE + 200 * MIB
    ) -> None:
        self.state, self.now, self.out = RenewalState(), 1000.0, list[Output]()
        self.policy = PolicyState()
        self.size, self.rate, self.work, self.free = 500.0 * MIB, rate_mib_min * MIB / 6, work, float(free)
        self.process = OwnProcess("worker:x", 7, 0)
        self.resource, self.lowest = "ram", self.free

    def sample(self) -> Sample:
        size, free = round(self.size), round(self.free)
        if self.resource == "vram":
            own = replace(self.process, rss_bytes=100 * MIB, vram_bytes=size)
            return Sample(RamReading(2 * GIB, TOTAL), VramReading(free, 4 * GIB), (own,), self.work)
        return Sample(RamReading(free, TOTAL), None, (replace(self.process, rss_bytes=size),), self.work)

    def minutes(self, count: float, **process: Any) -> list[Output]:
        self.process = replace(self.process, **process)
        fed: list[Output] = []
        for _ in range(round(count * 6)):
            self.state, out = renewal.step(self.state, self.sample(), self.policy, self.now, CONFIG)
            self.now += 10
            self.size += self.rate
            self.free -= self.rate
            fed += out
            if any(isinstance(o, Renew) for o in out) and self.rate:
                self.lowest, self.rate = self.free, 0.0
                self.process, self.free = replace(self.process, pid=8), self.free + self.size - 500 * MIB
                self.size = 500.0 * MIB
        self.out += fed
        return fed

    def kinds(self) -> list[str]:
        return [type(o).__name__ for o in self.out]


def test_growth_is_foretold_soothed_and_renewed_before_memory_is_low() -> None:
    run = Run()
    run.minutes(40)
    assert run.kinds() == ["Predicted", "Soothe", "Renew"]
    told = run.out[0]
    assert isinstance(told, Predicted) and told.line_bytes == LINE
    assert told.bytes_a_second == pytest.approx(2 * MIB / 60, rel=0.1)
    assert told.eta_s == pytest.approx((told.free_bytes - LINE) / (2 * MIB / 60), rel=0.1)
    assert run.lowest > LINE, "before it was tight"
    renew = run.out[2]
    assert isinstance(renew, Renew) and (renew.name, renew.pid, renew.reason) == ("worker:x", 7, "creep")


def test_vram_creep_is_trimmed_then_recycled_before_the_card_is_full() -> None:
    run = Run(free=CONFIG.guard.vram.low_enter.bytes_of(4 * GIB) + 200 * MIB)
    run.resource = "vram"
    run.minutes(40)
    assert run.kinds() == ["Predicted", "Soothe", "Renew"]
    assert [o.resource for o in run.out if isinstance(o, Predicted | Soothe)] == ["vram", "vram"]


def test_what_a_trim_cured_is_not_restarted() -> None:
    run = Run()
    while "Soothe" not in run.kinds():
        run.minutes(1)
    run.size -= 100 * MIB
    run.rate = 0.0
    run.minutes(300)
    assert run.kinds() == ["Predicted", "Soothe"]


def test_growth_far_from_the_line_is_left_alone() -> None:
    run = Run(free=3 * GIB)
    run.minutes(120)
    assert run.out == []


@pytest.mark.parametrize("work", [1, None])
def test_nothing_is_renewed_while_there_is_work_or_the_queue_is_unknown(work: int | None) -> None:
    run = Run(work=work)
    run.minutes(40)
    assert run.kinds() == ["Predicted", "Soothe"]
    run.work, run.rate = 0, 0.0
    run.minutes(0.9)
    assert "Renew" not in run.kinds(), "a quiet minute first"
    run.minutes(1)
    assert run.kinds()[-1] == "Renew"


def test_an_unknown_size_is_no_growth() -> None:
    run = Run()
    sample = Sample(RamReading(LINE + MIB, TOTAL), None, (OwnProcess("web", 1, None),), 0)
    for _ in range(600):
        run.now += 10
        run.state, out = renewal.step(run.state, sample, run.policy, run.now, CONFIG)
        assert out == []


def test_under_pressure_the_ladder_alone_acts() -> None:
    run = Run()
    run.policy = PolicyState(ram=LevelState(Level.LOW, known=True))
    run.minutes(40)
    assert "Renew" not in run.kinds()


def test_an_old_child_is_renewed_once_in_a_quiet_minute() -> None:
    run = Run(rate_mib_min=0)
    run.minutes(5, age_s=CONFIG.guard.age_max_s - 1)
    assert run.out == []
    run.minutes(2, age_s=CONFIG.guard.age_max_s)
    assert [o.reason for o in run.out if isinstance(o, Renew)] == ["age"]
    run.minutes(5, age_s=CONFIG.guard.age_max_s)
    assert len(run.out) == 1, "it is under way"


def test_two_old_children_are_not_renewed_at_once() -> None:
    state, now, found = RenewalState(), 0.0, list[float]()
    own = tuple(OwnProcess(n, i, 100 * MIB, age_s=1e9) for i, n in enumerate(("web", "worker:x"), 1))
    for _ in range(1000):
        now += 1
        sample = Sample(RamReading(3 * GIB, TOTAL), None, own, 0)
        state, out = renewal.step(state, sample, PolicyState(), now, CONFIG)
        for wish in out:
            assert isinstance(wish, Renew)
            own = tuple(p for p in own if p.name != wish.name)
            found.append(now)
    assert len(found) == 2 and found[1] - found[0] >= renewal.AGAIN_S


def test_what_could_not_be_had_back_is_never_renewed() -> None:
    """C05: after a driver update no new CUDA context can be made before the restart of the machine."""
    run = Run()
    run.minutes(60, keep=True, age_s=1e9)
    assert run.out == []


def test_a_new_process_starts_with_a_clean_sheet() -> None:
    run = Run()
    run.minutes(14)
    run.minutes(3, pid=8)
    assert run.out == []
