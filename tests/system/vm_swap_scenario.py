"""Runs inside the virtual machine (tests.system.vm): swap by the installed units, with a kernel of its own.

Standard library only, as it runs with the system's Python.
"""

import json
import mmap
import subprocess
import time
import traceback
from pathlib import Path

COSYD = "/opt/cosyd/venv/bin/cosyd"
MIB = 1024**2
FOUND: dict[str, object] = {}


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


def service() -> None:
    """The service sees to the profile's swap by itself, as user cosyd through the socket."""
    next_turn()
    started = subprocess.run(["systemctl", "start", "cosyd"], capture_output=True, text=True)
    FOUND["started"] = started.returncode
    deadline = time.monotonic() + 240
    while "cosyd-swap" not in Path("/proc/swaps").read_text() and time.monotonic() < deadline:
        time.sleep(1)
    FOUND["by the service"] = Path("/proc/swaps").read_text()
    pid = subprocess.run(
        ["systemctl", "show", "cosyd", "-p", "MainPID", "--value"], capture_output=True, text=True
    ).stdout.strip()
    FOUND["oom score"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    FOUND["cgroup"] = Path(f"/proc/{pid}/cgroup").read_text().strip()
    FOUND["stopped"] = subprocess.run(["systemctl", "stop", "cosyd"]).returncode
    log = subprocess.run(["journalctl", "-q", "-o", "cat", "-u", "cosyd*"], capture_output=True, text=True)
    FOUND["journal"] = log.stdout[-4000:]


def main() -> None:
    """What the test looks at."""
    FOUND["before"] = swap("status")
    FOUND["grown"] = swap("apply", "--total", "600MiB")
    FOUND["swaps"] = Path("/proc/swaps").read_text()
    unit = subprocess.run(
        ["systemctl", "show", "cosyd-swap.service", "-p", "Result,MemoryPeak"], capture_output=True, text=True
    )
    FOUND["unit"] = unit.stdout
    FOUND["other user"] = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", COSYD, "admin", "swap", "status"],
        capture_output=True, text=True,
    ).returncode  # fmt: skip
    # E05: more than RAM has is in use; then the swap cannot go.
    hog = mmap.mmap(-1, meminfo("MemAvailable") + 250 * MIB)
    for at in range(0, len(hog), 4096):
        hog[at : at + 8] = at.to_bytes(8, "little")
    FOUND["swapped_bytes"] = meminfo("SwapTotal") - meminfo("SwapFree")
    next_turn()
    FOUND["shrink refused"] = swap("apply", "--total", "0")
    FOUND["still there"] = Path("/proc/swaps").read_text()
    hog.close()
    deadline = time.monotonic() + 120
    while meminfo("SwapTotal") - meminfo("SwapFree") > 200 * MIB and time.monotonic() < deadline:
        time.sleep(0.5)
    next_turn()
    FOUND["shrunk"] = swap("apply", "--total", "0")
    FOUND["left"] = sorted(p.name for p in Path("/var/lib/cosyd-swap").iterdir())
    FOUND["after"] = Path("/proc/swaps").read_text()
    service()
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    FOUND["oom kills"] = [line for line in log.splitlines() if "Out of memory" in line or "oom-kill" in line]


if __name__ == "__main__":
    try:
        main()
    except Exception:
        FOUND["error"] = traceback.format_exc()
    Path("/root/result.json").write_text(json.dumps(FOUND, indent=1))
