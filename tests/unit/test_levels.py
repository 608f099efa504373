"""OK, LOW, CRITICAL: enter, exit, hold, and what unknown does to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.levels import Level, LevelState, step_level
from pipeline.profile.config import MIB, RamGuard, VramGuard

GIB = 1024 * MIB
TOTAL = 8 * GIB
GUARD = RamGuard()
LOW = GUARD.low_enter.bytes_of(TOTAL)
CRITICAL = GUARD.critical_enter.bytes_of(TOTAL)


def walk(readings: list[tuple[float, int | None]], **hints: float) -> list[Level]:
    state, levels = LevelState(), []
    for now, free in readings:
        state = step_level(state, free, TOTAL, GUARD, now, **hints)
        levels.append(state.level)
    return levels


def test_the_numbers_of_the_contract() -> None:
    assert GUARD.low_enter.bytes_of(2 * GIB) == 384 * MIB, "10 % of a small machine is too little"
    assert GUARD.low_enter.bytes_of(32 * GIB) == round(3.2 * GIB)
    assert GUARD.critical_enter.bytes_of(2 * GIB) == 160 * MIB
    assert VramGuard().critical_enter.bytes_of(24 * GIB) == 96 * MIB


def test_low_is_entered_after_its_hold_only() -> None:
    assert walk([(0, LOW - 1), (4.9, LOW - 1)]) == [Level.OK, Level.OK]
    assert walk([(0, LOW - 1), (5.0, LOW - 1)])[-1] is Level.LOW
    assert walk([(0, LOW - 1), (4.0, LOW + 1), (5.0, LOW - 1), (9.0, LOW - 1)])[-1] is Level.OK


def test_a_machine_that_stands_still_is_believed_at_once() -> None:
    assert walk([(0, LOW - 1)], stall_ratio=0.5) == [Level.LOW]


def test_critical_is_entered_at_once_even_from_ok() -> None:
    assert walk([(0, CRITICAL - 1)]) == [Level.CRITICAL]


def test_a_level_is_left_at_one_and_a_half_times_its_enter_value() -> None:
    down = [(0.0, LOW - 1), (5.0, LOW - 1)]
    assert walk([*down, (6.0, LOW + 1)])[-1] is Level.LOW
    assert walk([*down, (6.0, round(1.5 * LOW) + 1)])[-1] is Level.OK
    assert walk([(0, CRITICAL - 1), (1, CRITICAL + 1)])[-1] is Level.CRITICAL
    assert walk([(0, CRITICAL - 1), (1, round(1.5 * CRITICAL) + 1)])[-1] is Level.LOW
    assert walk([(0, CRITICAL - 1), (1, TOTAL)])[-1] is Level.OK


def test_unknown_keeps_the_level_forgets_the_hold_and_is_marked() -> None:
    state = step_level(LevelState(), LOW - 1, TOTAL, GUARD, 0.0)
    state = step_level(state, None, None, GUARD, 4.0)
    assert not state.known and state.low_since is None
    state = step_level(state, LOW - 1, TOTAL, GUARD, 5.0)
    assert state.level is Level.OK, "the hold begins anew"
    critical = step_level(LevelState(), 0, TOTAL, GUARD, 0.0)
    assert step_level(critical, None, TOTAL, GUARD, 1.0) == LevelState(Level.CRITICAL)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.one_of(st.none(), st.integers(0, TOTAL))), max_size=60))
def test_levels_never_contradict_the_reading(steps: list[tuple[float, int | None]]) -> None:
    state, now = LevelState(), 0.0
    for gap, free in steps:
        now += gap
        before = state
        state = step_level(state, free, TOTAL, GUARD, now)
        if free is None:
            assert state.level is before.level and not state.known
            continue
        if free < CRITICAL:
            assert state.level is Level.CRITICAL
        if free >= 1.5 * LOW:
            assert state.level is Level.OK
        if state.level > before.level:
            assert free < (LOW if state.level is Level.LOW else CRITICAL)
