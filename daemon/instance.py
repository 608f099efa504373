"""One supervisor per state folder, and no process of ours without one.

A flock keeps a second one out; leftovers of an earlier run are found by COSYD_INSTANCE in their environment
and ended; a warden process (forked first, almost nothing but a pipe) ends everything when this process is
killed, grandchildren too: PDEATHSIG reaches children only, and a killed child can end nobody.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.codes import EX_TEMPFAIL, CosydError

WARDEN_S = 2.5


class InstanceHeld(CosydError):
    """Another supervisor has the folder; a config_error, since waiting would not help."""


def take_lock(path: Path) -> int:
    """The descriptor of the locked file (close-on-exec); keep it open. Raises InstanceHeld naming the
    holder."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # The pid is a hint for the message only; the lock alone decides.
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "?"
        os.close(fd)
        raise InstanceHeld("config_error", reason="running", state=str(path.parent), pid=holder) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _environment(folder: Path) -> dict[str, str]:
    pairs = (item.partition(b"=") for item in (folder / "environ").read_bytes().split(b"\0"))
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def family(proc: Path = Path("/proc"), *, state: str, instance: str | None = None) -> Iterator[int]:
    """Pids of children and grandchildren: of `instance`, or of every instance of the state folder."""
    me = os.getpid()
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == me:
            continue
        with suppress(OSError):
            found = _environment(folder)
            if found.get("COSYD_STATE_DIR") != state or "COSYD_INSTANCE" not in found:
                continue
            if instance is None or found["COSYD_INSTANCE"] == instance:
                yield int(folder.name)


def end_leftovers(state: Path, *, timeout_s: float = 5.0) -> list[int]:
    """Kill what an earlier instance of this state folder left; the pids. Call it with the lock held, so that
    nothing alive can be meant. Each is looked at again through a pidfd, which no reused pid can fool."""
    ended: list[int] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = list(family(state=str(state)))
        if not found:
            break
        for pid in found:
            with suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in family(state=str(state)):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        ended.append(pid)
                finally:
                    os.close(fd)
        time.sleep(0.02)  # before the loop exists; the dead need a moment to leave /proc
    return sorted(set(ended))


def start_warden(state: Path, instance: str) -> int:
    """Fork the warden; call it before any thread. Returns the descriptor to keep open (close-on-exec)."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        try:
            _watch(read_fd, write_fd, str(state), instance)
        finally:
            os._exit(EX_TEMPFAIL)
    os.close(read_fd)
    return write_fd


def _watch(read_fd: int, write_fd: int, state: str, instance: str) -> None:
    os.setsid()  # out of reach of Ctrl-C and of a kill of the supervisor's group
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.close(write_fd)
    with suppress(OSError):
        Path("/proc/self/comm").write_text("cosyd-warden", "ascii")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)  # a pipe held open here would keep its reader waiting
    os.read(read_fd, 1)
    deadline = time.monotonic() + WARDEN_S
    while time.monotonic() < deadline:
        found = list(family(state=state, instance=instance))
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            break
        time.sleep(0.02)
    os._exit(0)
