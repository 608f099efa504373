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
from pipeline.planning.environment import SHORT, Role, child_environment
from pipeline.profile import Config

TAKEN_OUT = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def own_cores(root: Path = Path("/")) -> int:
    """Physical cores that this process may use: hardware threads of one core share its arithmetic units."""
    cores: set[str] = set()
    for cpu in os.sched_getaffinity(0):
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(siblings.read_text("ascii").strip())
        except OSError:
            cores.add(str(cpu))  # no topology: each counts
    return max(1, len(cores))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is the same for all children of one supervisor."""

    instance: str
    state: Path
    effective_config: Path
    config: Config = field(default_factory=Config)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def child_environment(self, role: Role = SHORT, **more: str) -> dict[str, str]:
        """The environment of a child: ours without what is ours alone, what its role asks for
        (`pipeline.planning.environment`), and what it must know."""
        ours = {name: value for name, value in self.environ.items() if name not in TAKEN_OUT}
        env = child_environment(role, self.config, own_cores(), ours)
        env |= {
            "COSYD_INSTANCE": self.instance,
            "COSYD_STATE_DIR": str(self.state),
            "COSYD_CONFIG": str(self.effective_config),
            "COSYD_PARENT_PID": str(os.getpid()),
            "PYTHONSAFEPATH": "1",  # a folder `ui` where the person stands is not our page
        }
        return env | more


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
    role: Role = SHORT,
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
            env=surroundings.child_environment(role, **more),
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
