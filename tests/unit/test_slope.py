"""The slope that memory soaks are judged by: robust, and as sure as its interval says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.slope import sen_interval, theil_sen


def test_a_straight_line_is_exact_and_an_outlier_changes_nothing() -> None:
    line = [3.0 * n + 1 for n in range(20)]
    assert theil_sen(line) == 3.0 and sen_interval(line) == (3.0, 3.0)
    line[7] = 1e9
    assert theil_sen(line) == 3.0


def test_noise_alone_holds_zero_as_often_as_it_says_and_growth_is_seen() -> None:
    draw = np.random.default_rng(1)
    series = draw.normal(0, 1, (400, 16))
    held = [low <= 0 <= high for low, high in (sen_interval(list(s)) for s in series)]
    assert 0.92 <= np.mean(held) <= 0.99
    grown = [sen_interval(list(s + np.arange(16)))[0] > 0 for s in series]
    assert all(grown)


def test_a_flat_series_has_no_slope_and_one_value_is_refused() -> None:
    assert sen_interval([5.0] * 10) == (0.0, 0.0)
    with pytest.raises(ValueError):
        sen_interval([1.0])
