"""Starting one child process, as docs/architecture.md says. Main thread only: PDEATHSIG follows the
thread."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from daemon.loop import open_pidfd

TAKEN_OUT = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


# glibc gives each thread a heap of its own and raises its thresholds as blocks come and go: with many short
# requests both look like a leak. One heap and fixed thresholds halve the growth of the page over 500
# recordings (5.7 to 1.8 KB each) and cost no measurable time. What the person set in the environment wins.
HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is the same for all children of one supervisor."""

    instance: str
    state: Path
    effective_config: Path
    gpu: str = "auto"
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def child_environment(self, **more: str) -> dict[str, str]:
        """The environment of a child: ours without what is ours alone, and what it must know."""
        env = {name: value for name, value in self.environ.items() if name not in TAKEN_OUT}
        env |= {
            "COSYD_INSTANCE": self.instance,
            "COSYD_STATE_DIR": str(self.state),
            "COSYD_CONFIG": str(self.effective_config),
            "COSYD_PARENT_PID": str(os.getpid()),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "PYTHONSAFEPATH": "1",  # a folder `ui` where the person stands is not our page
        }
        if self.gpu.startswith(("GPU-", "MIG-")):
            env["CUDA_VISIBLE_DEVICES"] = self.gpu
        elif self.gpu == "none":
            env["CUDA_VISIBLE_DEVICES"] = ""
        return HEAP | env | more


@dataclass(slots=True)
class Process:
    """A child process. `link` is our end of its socketpair, None for a short child."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    link: socket.socket | None = None

    @property
    def pid(self) -> int:
        return self.popen.pid

    def kill_group(self) -> None:
        """SIGKILL to its process group. Safe until it is reaped: a zombie keeps its pid."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def reap(self) -> str:
        """After its end: take its group along, free the descriptors. `exit 1` or `signal 9`."""
        self.kill_group()
        status = self.popen.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return f"signal {-status}" if status < 0 else f"exit {status}"


def spawn(
    module: Sequence[str],
    surroundings: Surroundings,
    *,
    listen: Mapping[str, socket.socket] | None = None,
    link: bool = True,
    stdout: int | None = None,
    **environment: str,
) -> Process:
    """Start `python -m MODULE ARGS`. Raises OSError when the machine cannot (no memory, no processes
    left)."""
    ours = theirs = None
    more = dict(environment)
    fds: list[int] = []
    if link:
        ours, theirs = socket.socketpair()
        fds.append(theirs.fileno())
        more["COSYD_LINK_FD"] = str(theirs.fileno())
    if listen:
        fds += [sock.fileno() for sock in listen.values()]
        more["COSYD_LISTEN_FDS"] = ",".join(f"{name}={sock.fileno()}" for name, sock in listen.items())
    try:
        popen = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=surroundings.child_environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            pass_fds=fds,
            start_new_session=True,
        )
    except OSError:
        if ours is not None:
            ours.close()
        raise
    finally:
        if theirs is not None:
            theirs.close()
    return Process(popen, open_pidfd(popen.pid), ours)
