"""A machine's /proc/meminfo, written whole while it is read."""

from __future__ import annotations

from pathlib import Path


def meminfo(root: Path, available_mib: int, total_mib: int = 4096) -> None:
    """`root` stands for `/`."""
    folder = root / "proc"
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "part"
    part.write_text(
        f"MemTotal: {total_mib * 1024} kB\nMemFree: {available_mib * 1024} kB\n"
        f"MemAvailable: {available_mib * 1024} kB\nCached: 0 kB\n"
    )
    part.replace(folder / "meminfo")
