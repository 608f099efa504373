"""How much RAM this process may still take: MemAvailable, or less where its cgroup has a limit.

The supervisor reads more carefully (`daemon/ram_reader.py`) and decides whether a worker may start at all;
this is for the worker itself, which has to choose how to run once it does.
"""

from __future__ import annotations

from pathlib import Path


def ram_free(root: Path = Path("/")) -> tuple[int, int] | None:
    """(available, total) in bytes, file cache counted as free; None where /proc does not say."""
    memory = _fields(root / "proc/meminfo", ":")
    available, total = memory.get("MemAvailable"), memory.get("MemTotal")
    if available is None or total is None:
        return None
    available, total = 1024 * available, 1024 * total
    for folder, names in _cgroups(root):
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is None or used is None or limit >= total:
            continue
        counts = _fields(folder / "memory.stat", " ")
        prefix = "" if names[0] == "memory.max" else "total_"
        cache = sum(counts.get(prefix + name, 0) for name in ("inactive_file", "active_file"))
        total, available = limit, min(available, limit - max(0, used - cache))
    return max(0, available), total


def _cgroups(root: Path) -> list[tuple[Path, tuple[str, str]]]:
    """Our cgroup and those above it, with the names of limit and usage, version 2 or 1."""
    found: list[tuple[Path, tuple[str, str]]] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.lstrip("/")
        found += [(f, names) for f in (folder, *folder.parents) if f == base or base in f.parents]
    return found


def _fields(path: Path, separator: str) -> dict[str, int]:
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(separator)
        number = value.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0])
    return found


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
