"""What processes cost while nothing happens: CPU by the scheduler's own clock, and wake-ups."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

BARE = """
import time
while True:
    time.sleep(1)
    for name in ("/proc/meminfo", "/proc/pressure/memory"):
        with open(name) as file:
            file.read()
"""


@contextmanager
def bare_python() -> Iterator[psutil.Process]:
    """The least that a guard in Python can cost here: it wakes once a second, reads two files, and that is
    all. What a wake-up costs depends on the machine (caches that others emptied) more than on the work."""
    process = subprocess.Popen([sys.executable, "-c", BARE], stdin=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU seconds of its threads so far, to the nanosecond by the scheduler (`schedstat`). `utime` and
    `stime` count timer ticks of 4 to 10 ms on most kernels: too coarse for work of a millisecond."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def wakeups(pid: int) -> int:
    """How often its threads have gone to sleep so far."""
    files = Path(f"/proc/{pid}/task").glob("*/status")
    found = [
        re.search(r"^voluntary_ctxt_switches:\s*(\d+)", file.read_text(), re.MULTILINE) for file in files
    ]
    return sum(int(match[1]) for match in found if match)


def at_rest(family: Mapping[str, psutil.Process], idle_s: float) -> dict[str, dict[str, float]]:
    """Memory (MB), CPU (percent of a core) and wake-ups a second of each process over `idle_s` seconds."""
    before, began = (
        {name: (cpu_seconds(p.pid), wakeups(p.pid)) for name, p in family.items()},
        time.monotonic(),
    )
    threading.Event().wait(idle_s)
    took = time.monotonic() - began
    return {
        name: {
            "rss_mb": p.memory_info().rss / 1e6,
            "pss_mb": p.memory_full_info().pss / 1e6,
            "cpu_percent": 100 * (cpu_seconds(p.pid) - before[name][0]) / took,
            "wakeups_per_s": (wakeups(p.pid) - before[name][1]) / took,
        }
        for name, p in family.items()
    }
