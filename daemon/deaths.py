"""Of what a child died: was it the kernel's OOM killer? And the brake that keeps it from being needed.

The child's own cgroup knows for certain (`daemon.cgroups`). Without one there is evidence: a SIGKILL that was
not ours, and /proc/vmstat counts more OOM kills than at the last look. Without evidence nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemon.cgroups import Groups
from daemon.levels import Level, brink_bytes
from daemon.ram_reader import RamReader
from daemon.sample import RamReading
from pipeline.profile import Config

OOM_KILL, OOM_KILL_LIKELY = "oom_kill", "oom_kill_likely"
"""Words of `[state.reason]`."""
LOOK_EVERY_S = 10.0
"""Between two looks at the kernel's count while memory is well; else at each look."""
CALM = 2
"""The brake is off above so many times the size at which LOW begins."""


@dataclass(frozen=True, slots=True)
class Death:
    """`cause` is OOM_KILL, OOM_KILL_LIKELY or None; `peak_bytes` the most its group ever held."""

    cause: str | None = None
    peak_bytes: int | None = None


def cause_of(
    status: str, ours: bool, group_kills: int | None, kills_before: int | None, kills_now: int | None
) -> str | None:
    """From the exit status of a process (`signal 9`), whether we killed it, and the kernel's counts of OOM
    kills: in its group, and on the machine. None of the counts is needed."""
    if ours or status != "signal 9":
        return None
    if group_kills is not None:
        return OOM_KILL if group_kills > 0 else None
    if kills_before is None or kills_now is None:
        return None
    return OOM_KILL_LIKELY if kills_now > kills_before else None


class Deaths:
    """`born` and `ended` for each child, `look` once a tick."""

    def __init__(self, ram: RamReader, groups: Groups | None) -> None:
        self._ram, self._groups = ram, groups
        self._kills: int | None = None
        self._looked_at = float("-inf")

    def born(self, pid: int, name: str) -> None:
        """Right after it was started; `name` is its role."""
        if self._groups is not None:
            self._groups.place(pid, name)

    def look(self, reading: RamReading | None, level: Level, config: Config, now: float) -> None:
        """Set the brake by what is free, and remember the kernel's count."""
        if self._groups is not None and reading is not None:
            ram = config.guard.ram
            calm = CALM * ram.low_enter.bytes_of(reading.total_bytes)
            floor = brink_bytes(ram, reading.total_bytes) // 2
            self._groups.brake(reading.available_bytes, calm, floor)
        elif self._groups is None and (level is not Level.OK or now - self._looked_at >= LOOK_EVERY_S):
            self._kills, self._looked_at = self._ram.oom_kills(), now

    def ended(self, pid: int, status: str, ours: bool) -> Death:
        """A child is gone and reaped."""
        found = self._groups.ended(pid) if self._groups is not None else None
        kills = found.oom_kills if found is not None else None
        now = None
        if kills is None and not ours and status == "signal 9":
            now = self._ram.oom_kills()
        cause = cause_of(status, ours, kills, self._kills, now)
        return Death(cause, found.peak_bytes if found is not None else None)
