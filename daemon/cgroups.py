"""A memory group for each child, where systemd delegated us a cgroup v2: a brake, and what became of it.

The supervisor stays in a group beside those of its children. Once memory is tight, `memory.high` of each lets
it grow only into what is free above the floor: a child that allocates faster than anybody can look is slowed
by the kernel until the guard has decided, instead of bringing the OOM killer. `memory.peak` and
`memory.events` are read at its end. Without delegation `Groups.take` gives None, and all works without.

Used by `daemon.deaths`. All paths start at `root`.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)
SUPERVISOR = "supervisor"
STEP_BYTES = 16 * 1024**2
"""A child may always grow by so much: a limit below its size would make the kernel reclaim in our write."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a child's group tells at its end. None is unknown: `memory.peak` came with Linux 5.19."""

    peak_bytes: int | None
    oom_kills: int | None


def brake_bytes(used: int, available: int, calm: int, floor: int) -> int | None:
    """The size up to which a group of `used` bytes may grow, None for no limit. From `calm` bytes available
    on nobody is held; below, all that is above `floor` may be taken."""
    if available >= calm:
        return None
    return used + max(STEP_BYTES, available - floor)


@dataclass(slots=True)
class _Group:
    folder: Path
    limit: int | None = None


@dataclass(slots=True)
class Groups:
    """Below `base`, the cgroup that is ours."""

    base: Path
    _groups: dict[int, _Group] = field(default_factory=dict)
    _left: list[Path] = field(default_factory=list)

    @classmethod
    def take(cls, root: Path = Path("/")) -> Groups | None:
        """Make our cgroup a parent of groups: its processes (we, and the warden that we forked) go into one
        of their own. None where there is no cgroup v2, no right to do so, or somebody else in it."""
        text = _read(root / "proc/self/cgroup") or ""
        path = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "/")
        if path == "/":
            return None
        base = root / "sys/fs/cgroup" / path.lstrip("/")
        if "memory" not in (_read(base / "cgroup.controllers") or "").split():
            return None
        if not all(os.access(base / name, os.W_OK) for name in ("cgroup.procs", "cgroup.subtree_control")):
            return None
        pids = [int(word) for word in (_read(base / "cgroup.procs") or "").split()]
        if not pids or not all(_is_ours(pid, root) for pid in pids):
            return None  # a shell's cgroup, say: not delegated to us
        try:
            (base / SUPERVISOR).mkdir(exist_ok=True)
            for pid in pids:
                _write(base / SUPERVISOR / "cgroup.procs", str(pid))
            _write(base / "cgroup.subtree_control", "+memory")
        except OSError as error:
            log.info("children get no memory groups of their own: %s", error)
            return None
        return cls(base)

    def place(self, pid: int, name: str) -> None:
        """Give a process that was just started, and all that it will start, a group."""
        self._sweep()
        folder = self.base / f"{name}-{pid}"
        try:
            folder.mkdir(exist_ok=True)
            _write(folder / "cgroup.procs", str(pid))
        except OSError as error:
            log.warning("%s (%d) has no memory group: %s", name, pid, error)
            self._left.append(folder)
            self._sweep()
            return
        self._groups[pid] = _Group(folder)

    def brake(self, available: int, calm: int, floor: int) -> None:
        """Once a look, with what the machine has available. Costs nothing while that is calm."""
        for group in self._groups.values():
            if available >= calm and group.limit is None:
                continue
            used = _number(group.folder / "memory.current")
            if used is None:
                continue
            limit = brake_bytes(used, available, calm, floor)
            if limit is not None and group.limit is not None and abs(limit - group.limit) < STEP_BYTES // 2:
                continue
            with suppress(OSError):
                _write(group.folder / "memory.high", "max" if limit is None else str(limit))
                group.limit = limit

    def ended(self, pid: int) -> Ended | None:
        """What the group of a process that is gone tells; the group goes with it."""
        group = self._groups.pop(pid, None)
        if group is None:
            return None
        events = _read(group.folder / "memory.events") or ""
        kills = next((line.split()[1] for line in events.splitlines() if line.startswith("oom_kill ")), None)
        found = Ended(_number(group.folder / "memory.peak"), int(kills) if kills else None)
        self._left.append(group.folder)
        self._sweep()
        return found

    def _sweep(self) -> None:
        """Remove groups that are empty: what a child started may end a moment after it."""
        for folder in list(self._left):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self._left.remove(folder)


def _is_ours(pid: int, root: Path) -> bool:
    """We, or a child of ours."""
    if pid == os.getpid():
        return True
    status = _read(root / f"proc/{pid}/status") or ""
    return f"\nPPid:\t{os.getpid()}\n" in status


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii")
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _write(path: Path, text: str) -> None:
    """In one call, as the kernel takes it."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
