"""The restart budget: pauses that double, a window, an end, and forgiveness for poison."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.backoff import Budget
from pipeline.profile.config import Restart

RULES = Restart()


def test_pauses_double_and_the_sixth_crash_in_the_window_is_the_end() -> None:
    budget, pauses = Budget(), []
    for second in range(6):
        budget = budget.charge(100.0 + second, RULES)
        pauses.append(budget.delay_s(RULES))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, None]


def test_crashes_older_than_the_window_are_forgotten() -> None:
    budget = Budget()
    for day in range(100):
        budget = budget.charge(day * RULES.window_s, RULES)
        assert budget.delay_s(RULES) == 1.0


def test_a_pause_never_exceeds_the_longest() -> None:
    rules = Restart(budget=50)
    budget = Budget(tuple(float(n) for n in range(40)))
    assert budget.delay_s(rules) == rules.backoff_max_s


def test_without_a_crash_there_is_no_pause() -> None:
    assert Budget().delay_s(RULES) == 0.0


@pytest.mark.parametrize("crashes", [(), (1.0,), (1.0, 2.0)])
def test_a_refund_takes_the_last_charge_back(crashes: tuple[float, ...]) -> None:
    assert Budget(crashes).charge(3.0, RULES).refund() == Budget(crashes)
    assert Budget().refund() == Budget()


@given(st.lists(st.floats(0.0, 1e6), max_size=60), st.integers(1, 8))
def test_no_window_ever_holds_more_starts_than_the_budget(gaps: list[float], allowed: int) -> None:
    rules = Restart(budget=allowed)
    budget, now, starts = Budget(), 0.0, []
    for gap in gaps:
        now += gap
        budget = budget.charge(now, rules)
        if budget.delay_s(rules) is None:
            break
        starts.append(now)
    for at in starts:
        assert sum(1 for other in starts if at - rules.window_s < other <= at) <= allowed
