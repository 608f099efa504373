"""Robust slope of a series and how sure it is, for memory growth."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


def _slopes(values: Sequence[float]) -> NDArray[np.float64]:
    """The slopes of all pairs of points, ascending. Raises ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError("a slope needs two values")
    y = np.asarray(values, dtype=np.float64)
    i, j = np.triu_indices(len(y), k=1)
    return np.sort((y[j] - y[i]) / (j - i))


def theil_sen(values: Sequence[float]) -> float:
    """Median of the slopes of all pairs of points, x being the index (Theil 1950, Sen 1968).

    Units of `values` a step. Raises ValueError for fewer than two values.
    """
    return float(np.median(_slopes(values)))


def sen_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Where that slope lies with `confidence`: Sen's interval from the variance of Kendall's tau, ties
    counted (Sen 1968, section 4). Raises ValueError for fewer than two values.
    """
    slopes = _slopes(values)
    n = len(values)
    _, ties = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * variance**0.5
    low = round((len(slopes) - half) / 2) - 1
    high = round((len(slopes) + half) / 2)
    return float(slopes[max(low, 0)]), float(slopes[min(high, len(slopes) - 1)])
