"""Leaner after out-of-memory, and back: steps, trials, and the configuration of each step. Footprints."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from daemon import footprint, warm
from daemon.admission import Need
from daemon.demand import Demand, is_wanted
from daemon.footprint import Footprint, giving_back, is_back
from daemon.leaner import EXHAUSTED, Leanness, lean_config, may_restore, ran_out
from pipeline.clock import FakeClock
from pipeline.profile import Config
from pipeline.profile.config import Lean

RULES = Lean()
MIB = 1024**2


def oom(state: Leanness, *times: float) -> Leanness:
    for at in times:
        state = ran_out(state, at, RULES)
    return state


def test_two_times_in_ten_minutes_are_a_step_and_one_is_none() -> None:
    assert oom(Leanness(), 0.0).step == 0
    assert oom(Leanness(), 0.0, 601.0).step == 0
    assert oom(Leanness(), 0.0, 300.0).step == 1
    assert oom(Leanness(), 0.0, 1.0, 2.0, 3.0).step == 2


def test_after_the_last_step_there_is_none_and_nothing_comes_back_by_itself() -> None:
    state = oom(Leanness(), *map(float, range(6)))
    assert state.step == EXHAUSTED and state.exhausted
    assert oom(state, 7.0, 8.0).step == EXHAUSTED
    assert may_restore(state, 1e9, True, RULES) == state


def test_all_of_it_comes_back_step_by_step_when_memory_is_calm() -> None:
    state = oom(Leanness(), 0.0, 1.0, 2.0, 3.0)
    assert may_restore(state, 1800.0, True, RULES).step == 2, "not yet"
    assert may_restore(state, 1803.0, False, RULES).step == 2, "not while it is tight or busy"
    state = may_restore(state, 1803.0, True, RULES)
    assert state.step == 1
    state = may_restore(state, 3603.0, True, RULES)
    assert state.step == 0 and state.trial
    assert may_restore(state, 5403.0, True, RULES) == Leanness(), "the trial went well"


def test_a_trial_that_fails_makes_the_next_wait_twice_as_long() -> None:
    state, now = oom(Leanness(), 0.0, 1.0), 1.0
    for wait in (1800.0, 3600.0, 7200.0):
        assert may_restore(state, now + wait - 1, True, RULES).step == 1
        now += wait
        state = may_restore(state, now, True, RULES)
        assert state.step == 0
        now += 5
        state = oom(state, now)
        assert state.step == 1, "one is enough on trial"
    for _ in range(20):
        now += RULES.restore_max_s
        state = oom(may_restore(state, now, True, RULES), now + 1)
    assert state.wait_s == RULES.restore_max_s


@pytest.mark.parametrize(
    ("step", "longest", "batch", "weights"),
    [(0, 40.0, 8, "bf16"), (1, 20.0, 1, "bf16"), (2, 20.0, 1, "int8"), (3, 20.0, 1, "int8")],
)
def test_the_configuration_of_each_step(step: int, longest: float, batch: int, weights: str) -> None:
    found = lean_config(Config(longest_segment_s=40.0, batch_segments=8, weights="bf16"), step)
    assert (found.longest_segment_s, found.batch_segments, found.weights) == (longest, batch, weights)


def test_pieces_do_not_become_absurdly_short() -> None:
    assert lean_config(Config(longest_segment_s=10.0), 1).longest_segment_s == 8.0
    assert lean_config(Config(longest_segment_s=5.0), 1).longest_segment_s == 5.0


# -- footprints ------------------------------------------------------------------------------------


def jobs(state: Footprint, *added: int, leak: int = 0) -> Footprint:
    """Jobs that take `added` MiB on top of 300 for a moment, and leave `leak` behind each."""
    size = 300
    for number, more in enumerate(added):
        for found in (size, size + more, size + leak):
            state = footprint.beat(state, f"job{number}", found * MIB, None)
        size += leak
        state = footprint.beat(state, None, size * MIB, None)
    return state


def test_before_it_was_ever_ready_nothing_is_known() -> None:
    assert footprint.need(Footprint()) is None
    assert footprint.need(footprint.beat(Footprint(), "j", 5, 5)) is None


def test_a_start_wants_what_its_jobs_will_hold_but_one_exception_does_not_count() -> None:
    state = footprint.loaded(Footprint(), 300 * MIB, None)
    assert footprint.need(state) == Need(330 * MIB)
    assert footprint.need(jobs(state, 200, 300, 5000)) == Need(660 * MIB)
    assert footprint.need(jobs(state, *[900] * 2, *[200] * 20)) == Need(550 * MIB), "sixteen count"


def test_an_engine_that_leaks_does_not_need_more_with_each_job() -> None:
    state = footprint.loaded(Footprint(), 300 * MIB, None)
    assert footprint.need(jobs(state, *[200] * 5, leak=200)) == Need(550 * MIB), "else it never starts again"


def test_a_restart_at_another_size_forgets_what_jobs_took_before() -> None:
    state = jobs(footprint.loaded(Footprint(), 300 * MIB, 3000 * MIB), 200, 200)
    assert footprint.need(footprint.loaded(state, 310 * MIB, 3000 * MIB)) == Need(561 * MIB, 3300 * MIB)
    assert footprint.need(footprint.loaded(state, 300 * MIB, 1500 * MIB)) == Need(330 * MIB, 1650 * MIB)


def test_what_an_earlier_run_needed_is_remembered() -> None:
    state = footprint.remembered([(700 * MIB, None), (None, None), (900 * MIB, 5), (1800 * MIB, None)])
    assert footprint.need(state) == Need(770 * MIB, 6), "of one that grew, the least"
    assert footprint.need(footprint.remembered([])) is None
    assert footprint.need(footprint.loaded(state, 300 * MIB, None)) == Need(330 * MIB)


def test_unknown_sizes_add_nothing() -> None:
    state = footprint.loaded(Footprint(), None, 100)
    state = footprint.beat(state, "j", None, None)
    assert footprint.need(state) == Need(None, 110)


def test_the_next_start_waits_until_vram_is_really_back() -> None:
    wait = giving_back(1000, 4000, 10.0)
    assert not is_back(wait, 1000, 10.25) and not is_back(wait, 3999, 12.0)
    assert is_back(wait, 4000, 12.0), "three quarters"
    assert is_back(wait, 1000, 15.0), "somebody else took it"
    assert is_back(wait, None, 10.1) and is_back(None, 0, 0.0)
    assert giving_back(None, 4000, 0.0) is None and giving_back(1000, None, 0.0) is None


def test_it_is_kept_warm_at_its_hours_without_any_work() -> None:
    assert is_wanted(Demand(), keep_alive_s=0, now=0.0, warm=True)
    assert is_wanted(Demand(), keep_alive_s=0, now=0.0, warm=False) is False


def test_at_its_hours_the_models_engine_is_kept_warm_or_the_built_in_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, clock, ready = Config(keep_warm=("00:00-24:00",)), FakeClock(), False
    monkeypatch.setattr(warm, "model_ready", lambda state: ready)
    kept = warm.Warm(lambda: config, clock, tmp_path)
    assert kept.engines() == {"builtin"}
    ready = True
    clock.advance(warm.LOOK_EVERY_S)
    assert kept.engines() == {"cosyvoice3"}
    hour = time.localtime(clock.wall()).tm_hour
    config = Config(keep_warm=(f"{(hour + 2) % 24:02d}:00-{(hour + 3) % 24:02d}:00",))
    assert kept.engines() == frozenset()
    config = Config()
    assert kept.engines() == frozenset()
