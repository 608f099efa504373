"""Pressure levels OK, LOW, CRITICAL of one resource, with enter, exit and hold. Pure.

Hysteresis as in oomd: a level is entered when free memory has been below its enter value for `hold_s`, and
left when free memory is above `exit_factor` times that value. An unknown reading changes nothing and is
marked, so that nobody acts on the level it left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pipeline.profile.config import RamGuard, VramGuard

STALL_HINT = 0.10
"""PSI `full avg10` from which a LOW reading is believed at once: everything stood still 10 % of the time."""


class Level(IntEnum):
    """The larger, the worse."""

    OK = 0
    LOW = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        """`ok`, `low`, `critical`: the key of people's word."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class LevelState:
    """`below_since[level]` is when free memory fell below that level's enter value, None when it is not."""

    level: Level = Level.OK
    low_since: float | None = None
    critical_since: float | None = None
    known: bool = False


def brink_bytes(guard: RamGuard | VramGuard, total_bytes: int) -> int:
    """Half of what CRITICAL begins at: below it nothing is left to wait with."""
    return guard.critical_enter.bytes_of(total_bytes) // 2


def step_level(
    state: LevelState,
    free_bytes: int | None,
    total_bytes: int | None,
    guard: RamGuard | VramGuard,
    now: float,
    *,
    stall_ratio: float | None = None,
) -> LevelState:
    """The next level. Unknown `free_bytes` keeps it, with `known` False and the hold times forgotten."""
    if free_bytes is None or total_bytes is None:
        return LevelState(state.level)
    low = guard.low_enter.bytes_of(total_bytes)
    critical = guard.critical_enter.bytes_of(total_bytes)
    low_since = (state.low_since if state.low_since is not None else now) if free_bytes < low else None
    critical_since = (
        (state.critical_since if state.critical_since is not None else now) if free_bytes < critical else None
    )
    level = state.level
    if level is Level.CRITICAL and free_bytes >= critical * guard.exit_factor:
        level = Level.LOW
    if level is Level.LOW and free_bytes >= low * guard.exit_factor:
        level = Level.OK
    hold_s = 0.0 if stall_ratio is not None and stall_ratio >= STALL_HINT else guard.low_hold_s
    if level is Level.OK and low_since is not None and now - low_since >= hold_s:
        level = Level.LOW
    if critical_since is not None and now - critical_since >= guard.critical_hold_s:
        level = Level.CRITICAL
    return LevelState(level, low_since, critical_since, known=True)
