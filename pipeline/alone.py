"""`working_alone`: workers for the time of a block, for `cosyd say` when no service runs.

A very small supervisor without memory policy: it starts a worker process for each engine that has something
queued, returns the job of one that dies, and ends jobs whose engine cannot work. It does not take the
instance lock, so that a service may start meanwhile: that one ends our workers as leftovers, requeues what
they held, and speaks on; leases make it safe, and whoever follows the job's files hears no difference.
Imports no engine: the work is done in `python -m pipeline.worker`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline import queue
from pipeline.child import lease_owner
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import Config, to_json
from pipeline.rpc import Link
from pipeline.store.db import connect, storage_error

LOOK_S = 0.05
"""How often the queue is looked at: part of the wait for the first sound."""

DEATHS = 3
"""Workers of an engine that may die in one block; then its jobs end with what the last one said."""

LASTING = frozenset({"model_missing", "config_error", "schema_mismatch"})
"""Causes that another start would only repeat."""


@dataclass(slots=True)
class _Worker:
    """A worker process, the link to it, and why it ended, if it said so."""

    popen: subprocess.Popen[bytes]
    owner: str
    link: Link | None = None
    fatal: CosydError | None = None


@dataclass(slots=True)
class _Engine:
    """What became of the workers of one engine."""

    worker: _Worker | None = None
    deaths: int = 0


@contextlib.contextmanager
def working_alone(paths: StatePaths, config: Config) -> Iterator[None]:
    """Work the queue while the block runs. The database must be there (`pipeline.store.ensure`).

    Raises CosydError(storage_full | storage_busy | schema_mismatch) when it cannot be opened. At the end of
    the block a worker gives back what it has in hand and goes.
    """
    connect(paths.database, "read").close()  # what is wrong is told here, not in a thread
    workshop = _Workshop(paths, config)
    thread = threading.Thread(target=workshop.run, name="workshop")
    thread.start()
    try:
        yield
    finally:
        workshop.ending.set()
        thread.join()


class _Workshop:
    """Runs in one thread, which also starts the workers: they die with it (PDEATHSIG)."""

    def __init__(self, paths: StatePaths, config: Config) -> None:
        self.ending = threading.Event()
        self._paths, self._config = paths, config
        self._instance = f"alone-{secrets.token_hex(4)}"
        self._effective = paths.tmp / f"{self._instance}.json"
        self._engines: dict[str, _Engine] = {}
        self._expire_at = 0.0

    def run(self) -> None:
        """Until `ending` is set; then all workers have gone."""
        self._effective.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._effective.write_text(to_json(self._config), "utf-8")
        conn = connect(self._paths.database, "work")
        try:
            while not self.ending.wait(LOOK_S):
                with contextlib.suppress(CosydError):  # locked or full: the next look finds out
                    self._look(conn)
        finally:
            self._stop(conn)
            with contextlib.suppress(CosydError, sqlite3.Error):
                # A job that was broken off (Ctrl+C, `| head`) ends now: nobody else is here to end it.
                queue.end_overdue(conn, time.time(), self._config)
            conn.close()
            self._effective.unlink(missing_ok=True)

    def _look(self, conn: sqlite3.Connection) -> None:
        now = time.time()
        try:
            if now >= self._expire_at:  # what an earlier process held when it was killed
                self._expire_at = now + self._config.schedule.expire_every_s
                alive = [e.worker.owner for e in self._engines.values() if e.worker is not None]
                queue.expire_leases(conn, now, alive)
                queue.end_overdue(conn, now, self._config)
            waiting = {name: stats.queued for name, stats in queue.queue_stats(conn, now).items()}
        except sqlite3.Error as error:
            raise storage_error(error) or error from error
        for name, queued in waiting.items():
            if queued:
                self._engines.setdefault(name, _Engine())
        for name, engine in self._engines.items():
            if engine.worker is not None and _has_ended(engine.worker.popen.pid):
                self._died(conn, name, engine)
            if engine.worker is None and waiting.get(name) and not self._served_elsewhere():
                engine.worker = self._start(name)
            elif engine.worker is not None and engine.worker.link is not None and waiting.get(name):
                engine.worker.link.notify("work_available")

    def _served_elsewhere(self) -> bool:
        """Whether a service has started since: then its workers do the work."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(0.2)
            try:
                sock.connect(str(self._paths.control_socket))
            except OSError:
                return False
        return True

    def _start(self, name: str) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-m", "pipeline.worker", "--engine", name, "--quiet"],
                env=self._environment(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        worker = _Worker(popen, lease_owner(self._instance, popen.pid))

        def fatal(params: dict[str, object]) -> None:
            with contextlib.suppress(ValueError, TypeError):
                details = params.get("params")
                worker.fatal = CosydError(
                    str(params.get("code")), **(details if isinstance(details, dict) else {})
                )

        quiet = dict.fromkeys(("hello", "ready", "heartbeat", "oom", "drained"), lambda params: None)
        worker.link = Link(ours, {**quiet, "fatal": fatal}).start()
        return worker

    def _environment(self, link_fd: int) -> dict[str, str]:
        root = str(Path(__file__).resolve().parents[1])
        python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        return {
            **os.environ,
            "PYTHONPATH": python_path,
            "PYTHONSAFEPATH": "1",  # a folder `pipeline` where the person stands is not ours
            "COSYD_LINK_FD": str(link_fd),
            "COSYD_PARENT_PID": str(os.getpid()),
            "COSYD_INSTANCE": self._instance,
            "COSYD_STATE_DIR": str(self._paths.root),
            "COSYD_CONFIG": str(self._effective),
        }

    def _died(self, conn: sqlite3.Connection, name: str, engine: _Engine) -> None:
        """Return what it held; an engine that cannot work ends its jobs, so that nobody waits for ever."""
        worker, engine.worker = engine.worker, None
        if worker is None:
            return
        self._reap(worker)
        engine.deaths += 1
        queue.requeue_owner(conn, worker.owner, time.time())
        error = worker.fatal or CosydError("engine_failed", engine=name, reason="worker_died")
        if (error.code in LASTING or engine.deaths >= DEATHS) and not self._served_elsewhere():
            queue.fail_engine_jobs(
                conn, name, time.time(), error.code, str(error.params.get("reason", "")) or None
            )

    def _stop(self, conn: sqlite3.Connection) -> None:
        workers = [e.worker for e in self._engines.values() if e.worker is not None]
        for worker in workers:
            if worker.link is not None:
                worker.link.notify("shutdown", grace_s=self._config.deadlines.stop_grace_s)
        late = time.monotonic() + self._config.timeout_factor * self._config.deadlines.stop_grace_s
        for worker in workers:
            while not _has_ended(worker.popen.pid) and time.monotonic() < late:
                time.sleep(LOOK_S / 5)
            crashed = _has_ended(worker.popen.pid)
            self._reap(worker)
            with contextlib.suppress(CosydError, sqlite3.Error):
                queue.requeue_owner(conn, worker.owner, time.time(), crashed=crashed, counted=crashed)

    def _reap(self, worker: _Worker) -> None:
        """End it and its process group; until it is waited for its pid is nobody else's."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.popen.pid, signal.SIGKILL)
        worker.popen.wait()
        if worker.link is not None:
            worker.link.close()


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without waiting for it: it stays a zombie, and its group can be ended."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
