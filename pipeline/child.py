"""What every child of the supervisor does first: `adopt()`, then a heartbeat, and its own end.

Used by `python -m ui`, `python -m pipeline.worker` and the short children. How the supervisor starts a child
is in docs/architecture.md; it spawns from its main thread only, since PDEATHSIG follows the *thread* that
forked. A child lives no longer than its supervisor: the kernel kills it (PDEATHSIG), and EOF on the link ends
its whole process group, so that an espeak-ng or ffmpeg it started goes too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pipeline.codes import EX_TEMPFAIL, CosydError
from pipeline.paths import StatePaths, default_state_root
from pipeline.profile import Config, from_json
from pipeline.profile.problems import problem, unreadable
from pipeline.rpc import Handler, Link

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
OOM_SCORE = 500
"""Of -1000 (never) to 1000 (first) in the eyes of the kernel's OOM killer."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ChildContext:
    """What the supervisor gave to this process.

    `link_socket` is None for the short children; `listen_fds` (web only) maps a door, `http` or `wyoming`, to
    the descriptor of its listening socket. `parent_pid` is None when nobody said who the parent is.
    """

    paths: StatePaths
    config: Config
    instance: str
    parent_pid: int | None
    link_socket: socket.socket | None
    listen_fds: Mapping[str, int]

    def open_link(
        self, handlers: Mapping[str, Handler] | None = None, on_eof: Callable[[], None] | None = None
    ) -> Link:
        """Start the link to the supervisor. Without `on_eof`, EOF ends this process and its group at once.

        Raises CosydError(config_error) in a process that was started without a link.
        """
        if self.link_socket is None:
            raise CosydError("config_error", problems=[problem("COSYD_LINK_FD", "by_cosyd")])
        return Link(self.link_socket, handlers, on_eof or end_group).start()


def offer_to_oom_killer(path: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Before the supervisor, which starts us again. Anybody may raise his own score; a higher one stays."""
    try:
        if int(path.read_text("ascii")) < OOM_SCORE:
            path.write_text(f"{OOM_SCORE}", "ascii")
    except (OSError, ValueError):
        pass  # no /proc, or one that is read-only


def adopt(environ: MutableMapping[str, str] = os.environ) -> ChildContext:
    """Become a child: die with the parent, lead a process group, take what was passed out of `environ`.

    COSYD_INSTANCE, COSYD_STATE_DIR and COSYD_CONFIG stay, for grandchildren, and so that leftovers are found.
    Raises CosydError(config_error) for a bad variable or configuration; ends the process (75) when the parent
    died before the kernel was asked to watch it.
    """
    die_with_parent()
    offer_to_oom_killer()
    parent = _number(environ, "COSYD_PARENT_PID")
    if parent is not None and os.getppid() != parent:
        os._exit(EX_TEMPFAIL)  # nobody is left to report to
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # `end_group` must never reach the spawner's group
    # Ctrl-C and a closed terminal are for the supervisor, which then stops us in order.
    for terminal_signal in (signal.SIGINT, signal.SIGHUP):
        signal.signal(terminal_signal, signal.SIG_IGN)
    link_fd = _number(environ, "COSYD_LINK_FD")
    listen_fds = parse_listen_fds(environ.pop("COSYD_LISTEN_FDS", ""))
    link_socket = None
    try:
        for fd in listen_fds.values():
            os.set_inheritable(fd, False)
        if link_fd is not None:
            os.set_inheritable(link_fd, False)  # a leaked copy would hide EOF
            link_socket = socket.socket(fileno=link_fd)
    except OSError:
        wrong = problem("COSYD_LINK_FD, COSYD_LISTEN_FDS", "by_cosyd")
        raise CosydError("config_error", problems=[wrong]) from None
    return ChildContext(
        paths=StatePaths.at(default_state_root(environ), environ),
        config=_read_config(environ.get("COSYD_CONFIG", "")),
        instance=environ.get("COSYD_INSTANCE", ""),
        parent_pid=parent,
        link_socket=link_socket,
        listen_fds=listen_fds,
    )


def _number(environ: MutableMapping[str, str], name: str) -> int | None:
    value = environ.pop(name, None)
    if value is None:
        return None
    if not value.isascii() or not value.isdigit():
        raise CosydError("config_error", problems=[problem(name, "not_number", value=repr(value))])
    return int(value)


def _read_config(path: str) -> Config:
    if not path:
        return Config()
    try:
        return from_json(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CosydError("config_error", problems=[unreadable(path, error)]) from None


def parse_listen_fds(text: str) -> dict[str, int]:
    """`http=5,wyoming=6` to `{"http": 5, "wyoming": 6}`. Raises CosydError(config_error)."""
    found: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, number = item.partition("=")
        if not name or not number.isascii() or not number.isdigit():
            raise CosydError(
                "config_error", problems=[problem("COSYD_LISTEN_FDS", "not_pair", value=repr(item))]
            )
        found[name] = int(number)
    return found


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG(SIGKILL): the kernel kills this process when its parent's spawning thread ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_group() -> NoReturn:
    """SIGKILL to the own process group when leading one, else to this process alone. Does not return."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(EX_TEMPFAIL)


def lease_owner(instance: str, pid: int) -> str:
    """`jobs.lease_owner` of a worker; the supervisor gives it to `requeue_owner` when the child exits."""
    return f"{instance}:{pid}"


def watch_signals(callbacks: Mapping[signal.Signals, Callable[[], None]]) -> Callable[[], None]:
    """Call back from a thread of its own when a signal arrives, even while the main thread sits in C code.

    A Python-level handler would run in the main thread, between any two of its instructions, where taking a
    lock can deadlock; here the kernel's handler only writes a byte. Main thread only; not with asyncio, which
    wants the wakeup descriptor for itself. Returns what ends the watching and restores the handlers.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in callbacks}

    def watch() -> None:
        with reader, writer:
            while received := reader.recv(64):
                for number in received:
                    if callback := callbacks.get(signal.Signals(number)):
                        callback()

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()

    def end() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        writer.shutdown(socket.SHUT_WR)
        thread.join()

    return end


def own_memory_bytes() -> int | None:
    """Anonymous resident memory of this process, what its end gives back; None when unreadable.

    File pages (mapped weights) are left out: they are page cache, and MemAvailable counts them as available.
    """
    try:
        fields = Path("/proc/self/statm").read_text("ascii").split()
        return max(0, int(fields[1]) - int(fields[2])) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def give_back_heap() -> None:
    """Return free pages of the C heap to the kernel (malloc_trim(3)); does nothing where libc has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle_heap() -> None:
    """Call once when everything is imported and loaded, so that memory is flat from the first request on.

    What is there now stays for the process's life: the garbage collector need not look at it again, which
    makes a full collection cheap enough to run after each job.
    """
    _settle_interned()
    gc.collect()
    gc.freeze()
    give_back_heap()


def clean_up() -> None:
    """Free what the last job left: cycles, Python's free lists (up to 2,000 tuples of each small size, which
    else fill over hundreds of jobs and look like a leak), and free pages of the C heap."""
    gc.collect()
    give_back_heap()


def _settle_interned(count: int = 100_000) -> None:
    """Let the table of interned strings grow now instead of some day. Call once, after all imports.

    pathlib interns each part of each path, and job ids are parts: every job leaves holes in that table, until
    it is rebuilt with three times the room, a step of one to several MB that looks like a leak to whoever
    measures. Rebuilt once it keeps its size (measured: RssAnon of a worker, 600 jobs). About 30 ms.
    """
    for number in range(count):
        sys.intern(f"settle-{number}")  # gone at once; only its hole stays


class HeartbeatState:
    """What the next heartbeat says. Written by the working thread, read by the heartbeat thread.

    `progress_at` is CLOCK_MONOTONIC in seconds, which all processes of a machine share: the time of the last
    chunk, so that alive but stuck can be told from busy. A module imported since the last heartbeat is
    progress too: most of a start is imports, and on a starved machine they take minutes. The peaks are the
    largest sizes since `reset_peaks`.
    """

    def __init__(self, vram_bytes: Callable[[], int | None] = lambda: None) -> None:
        self._read_vram = vram_bytes
        self.job: str | None = None
        self.segment: int | None = None
        self.progress_at: float = time.monotonic()
        self._modules = len(sys.modules)
        self.peak_rss_bytes: int | None = None
        self.peak_vram_bytes: int | None = None

    def progress(self) -> None:
        """Something was made just now."""
        self.progress_at = time.monotonic()

    def working_on(self, job: str | None, segment: int | None = None) -> None:
        """Say which job and segment is in hand; a change is progress."""
        self.job, self.segment = job, segment
        self.progress()

    def reset_peaks(self) -> None:
        """Begin a new measurement of the peaks (at the start of a job)."""
        self.peak_rss_bytes = self.peak_vram_bytes = None
        self.sample()

    def sample(self) -> dict[str, Any]:
        """Read the sizes, raise the peaks, and return the params of one `heartbeat`."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self.progress()
        rss, vram = own_memory_bytes(), self._read_vram()
        self.peak_rss_bytes = _larger(self.peak_rss_bytes, rss)
        self.peak_vram_bytes = _larger(self.peak_vram_bytes, vram)
        return {
            "rss_bytes": rss,
            "vram_bytes": vram,
            "job": self.job,
            "segment": self.segment,
            "progress_at": self.progress_at,
        }


def _larger(known: int | None, new: int | None) -> int | None:
    return new if known is None else known if new is None else max(known, new)


def start_heartbeat(link: Link, state: HeartbeatState, every_s: float) -> threading.Thread:
    """Send `heartbeat{...}` now and each `every_s` from a daemon thread, until the link is gone. At whole
    multiples of `every_s`: all children's come at one moment, and wake the supervisor once, just before its
    own look (`daemon.supervisor`), instead of all through the second with a cold cache each time."""
    pause = threading.Event()  # never set: a wait that no signal cuts short

    def beat() -> None:
        while link.notify("heartbeat", **state.sample()):
            pause.wait(every_s - time.monotonic() % every_s)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    return thread
