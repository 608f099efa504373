"""Slow growth of a footprint: a robust slope, and whether it is growth at all. Pure.

The slope is Theil and Sen's: the median of the slopes between all pairs of points (Sen 1968). Up to 29 % of
the points may be anything. A single step (a cache that was filled) is no growth: both halves must grow too.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_POINTS = 15
MIN_GROWTH_BYTES = 16 * 1024**2
MIN_GROWTH_RATIO = 0.03
HALF_SHARE = 0.25

Point = tuple[float, int]
"""Seconds and bytes."""


def median(values: list[float]) -> float:
    """Of at least one value. `statistics` would bring decimal and fractions into the supervisor."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slope(points: Sequence[Point]) -> float | None:
    """Bytes a second, None for fewer than two different times."""
    found = [
        (b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :] if b[0] != a[0]
    ]
    return median(found) if found else None


def growth(points: Sequence[Point]) -> float | None:
    """Bytes a second when `points` keep growing by an amount that matters, else None."""
    if len(points) < MIN_POINTS:
        return None
    whole = slope(points)
    if whole is None or whole <= 0:
        return None
    span, size = points[-1][0] - points[0][0], max(1, points[-1][1])
    if whole * span < max(MIN_GROWTH_BYTES, MIN_GROWTH_RATIO * size):
        return None
    middle = len(points) // 2
    halves = (slope(points[:middle]), slope(points[middle:]))
    if any(half is None or half < HALF_SHARE * whole for half in halves):
        return None
    return whole


def seconds_until(free_bytes: int, line_bytes: int, bytes_a_second: float) -> float:
    """When free memory reaches the line, at this rate; 0 when it is below already."""
    return max(0.0, (free_bytes - line_bytes) / bytes_a_second)
