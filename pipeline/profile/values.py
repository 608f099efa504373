"""Values people write in configuration files: sizes, durations, thresholds. Pure parsing.

Each parser takes what TOML, an environment variable or a flag gives (str, int, float, bool) and raises
BadValue, whose text says what would be right.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pipeline.profile.problems import BadValue

_SIZE_UNITS = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_HOURS = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])\s*-\s*([01]?[0-9]|2[0-4]):([0-5][0-9])")
_THRESHOLD = re.compile(r"max\(\s*([0-9.]+)\s*%\s*,\s*([^)]+)\)")


def parse_size(value: object) -> int:
    """Bytes from `268435456`, `"256 MiB"` or `"10 GB"`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        unit = _SIZE_UNITS.get(match[2].lower())
        if unit is not None:
            return round(float(match[1]) * unit)
    raise BadValue("not_size", value=repr(value))


def parse_duration(value: object) -> float:
    """Seconds from `15`, `"15 min"`, `"2 h"`, `"0"`; `"always"` and ollama's `-1` mean for ever (inf)."""
    if isinstance(value, str) and value.strip().lower() in ("always", "-1"):
        return math.inf
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == -1:
            return math.inf
        if value >= 0 and not math.isnan(value):
            return float(value)
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        unit = _DURATION_UNITS.get(match[2].lower())
        if unit is not None:
            return float(match[1]) * unit
    raise BadValue("not_duration", value=repr(value))


@dataclass(frozen=True, slots=True)
class Threshold:
    """`max(ratio of total, floor_bytes)`: a limit that scales with the machine but never gets tiny."""

    ratio: float
    floor_bytes: int

    def bytes_of(self, total_bytes: int) -> int:
        """The limit in bytes on a machine (or card) of `total_bytes`."""
        return max(round(self.ratio * total_bytes), self.floor_bytes)

    def __str__(self) -> str:
        return f"max({self.ratio * 100:g} %, {self.floor_bytes} B)"


def parse_threshold(value: object) -> Threshold:
    """`"max(10 %, 384 MiB)"`, or a plain size, which is the limit on every machine."""
    if isinstance(value, Threshold):
        return value
    if isinstance(value, str) and (match := _THRESHOLD.fullmatch(value.strip())):
        ratio = float(match[1]) / 100
        if 0 <= ratio < 1:
            return Threshold(ratio, parse_size(match[2].strip()))
    else:
        try:
            return Threshold(0.0, parse_size(value))
        except ValueError:
            pass
    raise BadValue("not_threshold", value=repr(value))


def parse_hours(value: object) -> tuple[str, ...]:
    """Times of day as `"06:30-23:00"`, one or a list; over midnight is `"22:00-06:00"`, for ever
    `"always"`."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise BadValue("not_hours", value=repr(value))
    found = []
    for item in items:
        text = str(item).strip()
        if text.lower() == "always":
            text = "00:00-24:00"
        match = _HOURS.fullmatch(text)
        if text and (match is None or max(_minutes(match, 1), _minutes(match, 3)) > 24 * 60):
            raise BadValue("not_hours", value=repr(item))
        found += [text] if text else []
    return tuple(found)


def _minutes(match: re.Match[str], group: int) -> int:
    return int(match[group]) * 60 + int(match[group + 1])


def within_hours(hours: tuple[str, ...], minute_of_day: float) -> bool:
    """Whether a local time of day (minutes since midnight) lies in one of `hours`, the end excluded."""
    for text in hours:
        match = _HOURS.fullmatch(text)
        if match is None:
            continue
        begin, end = _minutes(match, 1), _minutes(match, 3)
        inside = begin <= minute_of_day < end if begin <= end else not end <= minute_of_day < begin
        if inside:
            return True
    return False
