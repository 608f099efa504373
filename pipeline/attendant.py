"""The thread beside the working one: lease, cancel wishes and deadlines of the job in hand.

The working thread sits in the engine for seconds; this one keeps the lease meanwhile, with a connection of
its own, and can set the stop flag. An engine that does not come back after the flag was set has hung: then
`on_hang` ends the process, so that the supervisor returns the job at once. The supervisor's look at
`progress_at` is the backstop.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline import queue
from pipeline.clock import Clock
from pipeline.codes import CosydError
from pipeline.store.db import storage_error
from pipeline.take import Stop, Why

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the row is read for a cancel wish that no message brought."""

TICK_S = 0.25

MOVING_S = 15.0
"""An engine that made something, a token or a chunk, so short a time ago is slow and has not hung."""

PATIENCE = 10
"""How many times its limit a segment may take while the engine moves on. A machine that is slow or starved
gets its words; what would never end does."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a segment is late, seconds after it began: the first chunk, and all of it. Later by PATIENCE while
    the engine moves on."""

    first_chunk_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """What is in hand, as a value. Times are monotonic seconds; None when there is none of it.

    `leave_at`: when a segment in progress is given up because the worker was told to go. `moved_at`: when the
    engine was last seen to have made something.
    """

    renewed_at: float
    looked_at: float
    began_at: float | None = None
    limits: Limits | None = None
    heard: bool = False
    stopped_at: float | None = None
    leave_at: float | None = None
    moved_at: float | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now."""

    renew: bool = False
    look: bool = False
    stop: Why | None = None
    hung: bool = False


def due(held: Held, now: float, *, lease_s: float, grace_s: float) -> Due:
    """Pure: renew at a third of the lease, look once a second, stop what is late, call hung what stays."""
    stop = None
    if held.began_at is not None and held.limits is not None and held.stopped_at is None:
        allowed = held.limits.whole_s if held.heard else min(held.limits.first_chunk_s, held.limits.whole_s)
        moving = held.moved_at is not None and now - held.moved_at <= MOVING_S
        if now - held.began_at > (PATIENCE * allowed if moving else allowed):
            stop = Why.DEADLINE
        elif held.leave_at is not None and now >= held.leave_at:
            stop = Why.LEAVE
    return Due(
        renew=now - held.renewed_at >= lease_s / 3,
        look=now - held.looked_at >= min(LOOK_S, lease_s / 3),
        stop=stop,
        hung=held.began_at is not None and held.stopped_at is not None and now - held.stopped_at > grace_s,
    )


class Attendant:
    """Watches at most one job at a time: `hold` .. `let_go`, and inside `begin` .. `heard` .. `end`. What
    `progress` gives changes whenever the engine makes something."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        lease_s: float,
        grace_s: float,
        on_hang: Callable[[Why], None],
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._connect, self._clock = connect, clock
        self._lease_s, self._grace_s, self._on_hang = lease_s, grace_s, on_hang
        self._progress, self._progressed = progress, progress()
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._job, self._token, self._stop = "", "", Stop()
        self._leave_at: float | None = None
        self._wake, self._ended = threading.Event(), False
        self._conn: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._run, name="attendant", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and its connection."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        elif self._conn is not None:  # never started: who called `tick` made the connection
            self._conn.close()

    def hold(self, job_id: str, token: str, stop: Stop) -> None:
        """A job was claimed just now."""
        now = self._clock.monotonic()
        with self._lock:
            self._job, self._token, self._stop = job_id, token, stop
            self._held = Held(renewed_at=now, looked_at=now)
        self._wake.set()

    def let_go(self) -> None:
        """The job in hand is over or given back."""
        with self._lock:
            self._held = None

    def begin(self, limits: Limits) -> None:
        """A segment's synthesis begins."""
        self._change(began_at=self._clock.monotonic(), limits=limits, heard=False)

    def heard(self) -> None:
        """Its first chunk is there."""
        self._change(heard=True)

    def end(self) -> None:
        """The engine came back."""
        self._change(began_at=None, limits=None)

    def leave(self, at: float) -> None:
        """From `at` (monotonic) on no segment is waited for. Never moved to a later time."""
        with self._lock:
            self._leave_at = at if self._leave_at is None else min(at, self._leave_at)
        self._wake.set()

    def cancel(self, job_id: str) -> bool:
        """Stop `job_id` at once if it is in hand."""
        with self._lock:
            if self._held is None or self._job != job_id:
                return False
            self._stop.set(Why.CANCEL)
            return True

    def _change(self, **fields: object) -> None:
        with self._lock:
            if self._held is not None:
                self._held = replace(self._held, **fields)  # type: ignore[arg-type]

    def _run(self) -> None:
        while not self._ended:
            with self._lock:
                held = self._held
            self._wake.wait(TICK_S if held is not None else None)
            self._wake.clear()
            self.tick()
        if self._conn is not None:
            self._conn.close()

    def tick(self) -> None:
        """Do what is due. Public for tests with a fake clock, which do not start the thread."""
        now = self._clock.monotonic()
        if (progressed := self._progress()) != self._progressed:
            self._progressed = progressed
            self._change(moved_at=now)
        with self._lock:
            held, job, token, stop = self._held, self._job, self._token, self._stop
            leave_at = self._leave_at
        if held is None:
            return
        held = replace(held, stopped_at=stop.since, leave_at=leave_at)
        todo = due(held, now, lease_s=self._lease_s, grace_s=self._grace_s)
        if todo.stop is not None:
            stop.set(todo.stop)
        if todo.hung:
            self._on_hang(stop.why or Why.DEADLINE)
            return
        if todo.renew and self._renew(job, token, stop):
            self._change_if(token, renewed_at=now)
        if todo.look:
            self._look(job, stop)
            self._change_if(token, looked_at=now)

    def _change_if(self, token: str, **fields: object) -> None:
        with self._lock:
            if self._held is not None and self._token == token:
                self._held = replace(self._held, **fields)  # type: ignore[arg-type]

    def _renew(self, job: str, token: str, stop: Stop) -> bool:
        """False: try again at the next tick. A database that is locked for us is locked for everyone."""
        try:
            kept = queue.renew_lease(self._database(), job, token, self._clock.wall(), self._lease_s)
        except CosydError as error:
            log.debug("lease of %s not renewed: %s", job, error.code)
            return False
        if not kept:
            stop.set(Why.LEASE_LOST)
        return True

    def _look(self, job: str, stop: Stop) -> None:
        try:
            wanted = queue.cancel_requested(self._database(), job)
        except (CosydError, sqlite3.Error) as error:
            if isinstance(error, sqlite3.Error) and storage_error(error) is None:
                raise
            return
        if wanted:
            stop.set(Why.CANCEL)

    def _database(self) -> sqlite3.Connection:
        if self._conn is None:
            self._conn = self._connect()
        return self._conn
