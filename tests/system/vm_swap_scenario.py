"""Runs inside the virtual machine (tests.system.vm): swap by the installed units, with a kernel of its own.

Standard library only, as it runs with the system's Python. What it finds goes into `found`.
"""

import json
import mmap
import os
import subprocess
import time
from pathlib import Path
from typing import Any

COSYD = "/opt/cosyd/venv/bin/cosyd"
MIB = 1024**2


def swap(*words: str) -> dict[str, object]:
    """`cosyd admin swap WORDS --json`, with its exit status."""
    done = subprocess.run([COSYD, "admin", "swap", *words, "--json"], capture_output=True, text=True)
    print(words, done.returncode, done.stdout, done.stderr, flush=True)
    answer = json.loads(done.stdout) if done.stdout else {"error": done.stderr[-2000:]}
    return {**answer, "exit": done.returncode}


def meminfo(name: str) -> int:
    """A number of /proc/meminfo, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def next_turn() -> None:
    """One change a minute; a test need not wait for it."""
    Path("/var/lib/cosyd-swap/last-change").unlink(missing_ok=True)


def service(found: dict[str, Any]) -> None:
    """The service sees to the profile's swap by itself, as user cosyd through the socket."""
    next_turn()
    started = subprocess.run(["systemctl", "start", "cosyd"], capture_output=True, text=True)
    found["started"] = started.returncode
    deadline = time.monotonic() + 240
    while "cosyd-swap" not in Path("/proc/swaps").read_text() and time.monotonic() < deadline:
        time.sleep(1)
    found["by the service"] = Path("/proc/swaps").read_text()
    pid = subprocess.run(
        ["systemctl", "show", "cosyd", "-p", "MainPID", "--value"], capture_output=True, text=True
    ).stdout.strip()
    found["oom score"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    found["cgroup"] = Path(f"/proc/{pid}/cgroup").read_text().strip()
    log = subprocess.run(["journalctl", "-q", "-o", "cat", "-u", "cosyd*"], capture_output=True, text=True)
    found["journal"] = log.stdout[-4000:]


def swap_by_hand(found: dict[str, Any]) -> None:
    """By the command line, before the service runs."""
    found["before"] = swap("status")
    found["grown"] = swap("apply", "--total", "600MiB")
    found["swaps"] = Path("/proc/swaps").read_text()
    unit = subprocess.run(
        ["systemctl", "show", "cosyd-swap.service", "-p", "Result,MemoryPeak"], capture_output=True, text=True
    )
    found["unit"] = unit.stdout
    found["other user"] = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", COSYD, "admin", "swap", "status"],
        capture_output=True, text=True,
    ).returncode  # fmt: skip
    # E05: more than RAM has is in use; then the swap cannot go.
    hog = mmap.mmap(-1, meminfo("MemAvailable") + 250 * MIB)
    block = os.urandom(MIB)
    while hog.tell() + MIB <= len(hog):
        hog.write(block)
    found["swapped_bytes"] = meminfo("SwapTotal") - meminfo("SwapFree")
    next_turn()
    found["shrink refused"] = swap("apply", "--total", "0")
    found["still there"] = Path("/proc/swaps").read_text()
    hog.close()
    deadline = time.monotonic() + 120
    while meminfo("SwapTotal") - meminfo("SwapFree") > 200 * MIB and time.monotonic() < deadline:
        time.sleep(0.5)
    next_turn()
    found["shrunk"] = swap("apply", "--total", "0")
    found["left"] = sorted(p.name for p in Path("/var/lib/cosyd-swap").iterdir())
    found["after"] = Path("/proc/swaps").read_text()
