"""Reads RAM: MemAvailable plus reclaimable ZFS ARC, bounded by cgroup limits; PSI; other programs' sizes.

All paths start at `root`, so that tests give a folder of their own. An unreadable value is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from daemon.sample import RamReading

ARC = "proc/spl/kstat/zfs/arcstats"
LOOK_FOR_LIMITS_EVERY = 60
"""Readings between two looks for cgroup limits and for ZFS, which rarely change."""
_MEMINFO = re.compile(
    r"^(Mem(?:Total|Free|Available)|Buffers|Cached|Shmem|SReclaimable|Swap(?:Total|Free)): +([0-9]+) kB$",
    re.M,
)
_STATUS = re.compile(r"^(PPid|RssAnon|RssShmem):\s+([0-9]+)", re.M)
_OOM_KILLS = re.compile(r"^oom_kill ([0-9]+)$", re.M)
INTERPRETERS = re.compile(r"(python|node|java|ruby|perl|bash|sh|uvicorn)[0-9.]*")
GENERIC = re.compile(r"(__main__|main|app|server|webui|launch|run|index|start)\.[a-z]+")
"""Names of scripts that say nothing without their folder: ComfyUI/main.py."""


def script_of(arguments: list[str]) -> str | None:
    """What an interpreter runs, from its command line: a script's name, or a module after `-m`. None when it
    cannot be told; never more than that, since arguments may hold anything."""
    rest = iter(arguments[1:])
    for argument in rest:
        if argument in ("-m", "-jar"):
            return next(rest, "").rpartition("/")[2][:64] or None
        if argument.startswith("-"):
            if argument in ("-c", "-e", "-X", "-W"):
                return None
            continue
        folder, _, name = argument.rpartition("/")
        parent = folder.rpartition("/")[2]
        return (f"{parent}/{name}" if parent and GENERIC.fullmatch(name) else name)[:64] or None
    return None


def parse_meminfo(text: str) -> dict[str, int]:
    """The lines of /proc/meminfo that matter here, in bytes. One expression, as it runs each second."""
    return {name: int(size) * 1024 for name, size in _MEMINFO.findall(text)}


def available_bytes(memory: dict[str, int]) -> tuple[int, str] | None:
    """Available bytes from /proc/meminfo and where the number came from; None when it cannot be told.

    Inside some containers MemAvailable is a copy of MemFree (lxcfs 175), so that a warm page cache looks
    like a full machine. The kernel counts at least half of the file cache as available; where less than a
    quarter is, the reclaimable cache is added here.
    """
    free = memory.get("MemFree")
    given = memory.get("MemAvailable")
    if free is None:
        return (given, "meminfo") if given is not None else None
    cache = max(0, memory.get("Cached", 0) - memory.get("Shmem", 0)) + memory.get("Buffers", 0)
    if given is None or given < free + cache // 4 - memory.get("MemTotal", 0) // 50:
        return free + cache // 2 + memory.get("SReclaimable", 0) // 2, "meminfo+cache"
    return given, "meminfo"


def reclaimable_arc_bytes(text: str) -> int:
    """What ZFS can give back: size - c_min, from /proc/spl/kstat/zfs/arcstats."""
    values = {f[0]: int(f[2]) for line in text.splitlines() if len(f := line.split()) == 3 and f[2].isdigit()}
    return max(0, values.get("size", 0) - values.get("c_min", values.get("size", 0)))


class RamReader:
    """`read()` gives one RamReading, or None when /proc/meminfo cannot be read."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._prefix = str(root).rstrip("/") + "/"
        self._has_arc = False
        self._limits: list[tuple[Path, bool]] = []
        self._reads = 0

    def _text(self, path: str) -> str | None:
        # Without pathlib and buffered files: they took most of a tick, a third of the CPU at rest.
        try:
            fd = os.open(self._prefix + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = b""
            while more := os.read(fd, 65536):
                data += more
            return data.decode("ascii", "replace")
        except OSError:
            return None
        finally:
            os.close(fd)

    def read(self) -> RamReading | None:
        """One look, well below a millisecond."""
        text = self._text("proc/meminfo")
        memory = parse_meminfo(text) if text else {}
        total, found = memory.get("MemTotal"), available_bytes(memory)
        if total is None or found is None:
            return None
        available, source = found
        if self._reads % LOOK_FOR_LIMITS_EVERY == 0:
            self._limits = list(self._find_limits(total))
            self._has_arc = self._text(ARC) is not None
        if self._has_arc and (arc := self._text(ARC)):
            available, source = min(total, available + reclaimable_arc_bytes(arc)), source + "+arc"
        self._reads += 1
        for folder, unified in self._limits:
            if (bounded := self._in_cgroup(folder, unified)) is not None:
                limit, left = bounded
                if limit < total:
                    total = limit
                if left < available:
                    available, source = left, "cgroup"
        swap_total, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
        known = swap_total is not None and swap_free is not None
        return RamReading(
            available_bytes=available,
            total_bytes=total,
            swap_used_bytes=max(0, swap_total - swap_free) if known else None,  # type: ignore[operator]
            swap_total_bytes=swap_total,
            stall_ratio=self._stall(),
            source=source,
        )

    def _stall(self) -> float | None:
        """PSI of the cgroup that bounds us, else of the machine: inside a container /proc shows the host's,
        whose stalls are not ours."""
        for folder, unified in self._limits:
            if unified and (text := self._text(os.path.relpath(folder / "memory.pressure", self._root))):
                return self._full_avg10(text)
        return self._full_avg10(self._text("proc/pressure/memory") or "")

    @staticmethod
    def _full_avg10(text: str) -> float | None:
        for line in text.splitlines():
            if line.startswith("full avg10="):
                try:
                    return float(line.split()[1].partition("=")[2]) / 100
                except (ValueError, IndexError):
                    return None
        return None

    def _find_limits(self, total: int) -> Iterable[tuple[Path, bool]]:
        """Folders of our cgroup and those above it that have a limit below the machine's memory."""
        for line in (self._text("proc/self/cgroup") or "").splitlines():
            parts = line.split(":", 2)
            if len(parts) != 3:
                continue
            unified = parts[0] == "0" and parts[1] == ""
            if not unified and "memory" not in parts[1].split(","):
                continue
            base = self._root / "sys/fs/cgroup" / ("" if unified else "memory")
            folder = base / parts[2].lstrip("/")
            while folder == base or base in folder.parents:
                limit = self._limit(folder, unified)
                if limit is not None and limit < total:
                    yield folder, unified
                if folder == base:
                    break
                folder = folder.parent

    def _limit(self, folder: Path, unified: bool) -> int | None:
        """The least of what is allowed; at `memory.high` processes are already slowed to a crawl."""
        names = ("memory.max", "memory.high") if unified else ("memory.limit_in_bytes",)
        found = [value for name in names if (value := self._number(folder / name)) is not None]
        return min(found, default=None)

    def _number(self, path: Path) -> int | None:
        text = self._text(os.path.relpath(path, self._root))
        return int(text) if text and text.strip().isdigit() else None

    def _in_cgroup(self, folder: Path, unified: bool) -> tuple[int, int] | None:
        """Limit and what is left below it. File cache counts as free: after a big file was read, `current`
        sits at the limit, and naive readers kill for it. One sample may show more cache than use."""
        limit = self._limit(folder, unified)
        current = self._number(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit is None or current is None:
            return None
        prefix = "" if unified else "total_"
        cache = 0
        for line in (self._text(os.path.relpath(folder / "memory.stat", self._root)) or "").splitlines():
            name, _, value = line.partition(" ")
            if name in (prefix + "inactive_file", prefix + "active_file", prefix + "slab_reclaimable"):
                cache += int(value) if value.strip().isdigit() else 0
        return limit, max(0, min(limit, limit - max(0, current - cache)))

    def oom_kills(self) -> int | None:
        """How many processes the kernel has ended for lack of memory since it started."""
        found = _OOM_KILLS.search(self._text("proc/vmstat") or "")
        return int(found[1]) if found else None

    def name_of(self, pid: int) -> str:
        """The program's name, "?" when it is gone; of an interpreter the script that it runs."""
        name = (self._text(f"proc/{pid}/comm") or "?").strip()
        if INTERPRETERS.fullmatch(name):
            return script_of((self._text(f"proc/{pid}/cmdline") or "").split("\0")) or name
        return name

    def largest_others(self, ours: frozenset[int], limit: int = 3) -> list[tuple[str, int]]:
        """Names and sizes of the largest programs that are not ours, processes of a name together.

        `ours` are our children; we, and what they or we started, are left out too. What cannot be given back
        counts: anonymous memory, and shared memory (a database's buffers, a mapped tmpfs) once for a name, as
        its processes mostly share the same.
        """
        family = ours | {os.getpid()}
        private: dict[str, int] = {}
        shared: dict[str, int] = {}
        try:
            pids = [int(folder.name) for folder in (self._root / "proc").iterdir() if folder.name.isdigit()]
        except OSError:
            return []
        for pid in pids:
            found = dict(_STATUS.findall(self._text(f"proc/{pid}/status") or ""))
            if pid in family or int(found.get("PPid", 0)) in family:
                continue
            anonymous, shmem = (int(found.get(name, 0)) * 1024 for name in ("RssAnon", "RssShmem"))
            if anonymous + shmem > 0 and (name := self.name_of(pid)) != "?":
                private[name] = private.get(name, 0) + anonymous
                shared[name] = max(shared.get(name, 0), shmem)
        sizes = ((name, size + shared[name]) for name, size in private.items())
        return sorted(sizes, key=lambda item: -item[1])[:limit]
