"""Robust slope of a series, for memory growth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def theil_sen(values: Sequence[float]) -> float:
    """Median of the slopes of all pairs of points, x being the index (Theil 1950, Sen 1968).

    Units of `values` a step. Raises ValueError for fewer than two values.
    """
    if len(values) < 2:
        raise ValueError("a slope needs two values")
    y = np.asarray(values, dtype=np.float64)
    i, j = np.triu_indices(len(y), k=1)
    return float(np.median((y[j] - y[i]) / (j - i)))
