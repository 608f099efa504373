"""Time as a value: the Clock protocol and the fixed-width UTC text that rows carry.

Policies take `now` as an argument; only shells own a Clock. Tests pass a FakeClock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time (seconds since the epoch, may jump) and monotonic time (never goes back)."""

    def wall(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass
class FakeClock:
    """A clock that moves only when told to."""

    at: float = 1_700_000_000.0
    mono: float = 1000.0

    def wall(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.mono

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self.at += seconds
        self.mono += seconds


def utc_text(wall_s: float) -> str:
    """`2026-01-31T08:09:10.123456Z`: fixed width, so that text order is time order (CONTRACTS 2)."""
    micros = round(wall_s * 1_000_000)
    stamp = datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{micros % 1_000_000:06d}Z"


def wall_seconds(text: str) -> float:
    """Inverse of `utc_text`. Raises ValueError on any other form."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()
