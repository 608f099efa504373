"""The one thread that writes the database for the supervisor: events, samples, and short queue operations.

The loop never waits for SQLite: it hands work in, and results come back through `post`. The queue is bounded:
samples are dropped first, events are kept as long as there is room, and the number lost is written with the
next event. Operations (requeue, expiry, wait reasons) are kept until they succeed; those with the same key
replace each other.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.codes import CosydError
from pipeline.events import Event, Sample, insert_events, insert_samples
from pipeline.store.db import check_place, connect, file_identity, storage_error

log = logging.getLogger(__name__)
MAX_EVENTS = 5000
MAX_SAMPLES = 200
RETRY_S = 0.5
TOLD_EVERY_S = 60.0
_FAILED = object()


def is_passing(error: CosydError | sqlite3.Error) -> bool:
    """True for a lock or a full disk, which another try may not meet; a bad row stays bad."""
    known = storage_error(error) if isinstance(error, sqlite3.Error) else error
    return known is not None and known.code in ("storage_busy", "storage_full")


@dataclass(slots=True)
class _Operation:
    key: str
    run: Callable[[sqlite3.Connection], Any]
    done: Callable[[Any], None] | None


class Writer:
    """`post` hands a callback to the loop. Start it once; `stop` writes what is left, for `timeout_s` at
    most."""

    def __init__(self, database: Path, post: Callable[[Callable[[], None]], None]) -> None:
        self._database, self._post = database, post
        self._wake = threading.Condition()
        self._events: deque[Event] = deque()
        self._samples: deque[Sample] = deque()
        self._operations: deque[_Operation] = deque()
        self._stopping = False
        self.lost_events = 0
        self.lost_samples = 0
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def event(self, event: Event) -> None:
        """Never waits. With no room the oldest event goes, and is counted."""
        with self._wake:
            if len(self._events) >= MAX_EVENTS:
                self._events.popleft()
                self.lost_events += 1
            self._events.append(event)
            self._wake.notify()

    def sample(self, sample: Sample) -> None:
        """Never waits. With no room, or with events waiting for theirs, the oldest sample goes."""
        with self._wake:
            if len(self._samples) >= MAX_SAMPLES:
                self._samples.popleft()
                self.lost_samples += 1
            self._samples.append(sample)
            self._wake.notify()

    def do(
        self,
        key: str,
        run: Callable[[sqlite3.Connection], Any],
        done: Callable[[Any], None] | None = None,
    ) -> None:
        """Run `run(connection)` in the writer thread, then `done(result)` in the loop. One waiting
        operation of the same key is replaced."""
        with self._wake:
            self._operations = deque(op for op in self._operations if op.key != key)
            self._operations.append(_Operation(key, run, done))
            self._wake.notify()

    def stop(self, timeout_s: float) -> bool:
        """Write what is left and end; False when it was not done in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        rows: sqlite3.Connection | None = None
        work: sqlite3.Connection | None = None  # writes jobs: synchronous=FULL
        opened: tuple[int, int] | None = None
        told = ("", float("-inf"))
        while True:
            with self._wake:
                while not (self._events or self._samples or self._operations or self._stopping):
                    self._wake.wait()
                if self._stopping and not (self._events or self._samples or self._operations):
                    break
            try:
                opened = opened or file_identity(self._database)
                check_place(self._database, opened)  # what is written elsewhere would be lost
                rows = rows or connect(self._database, "telemetry")
                work = work or connect(self._database, "work")
                self._operate(work)
                self._write_events(rows)
                self._write_samples(rows)
            except (CosydError, sqlite3.Error) as error:
                told = self._tell(str(error), told)
                if not is_passing(error):
                    self._drop_one()
                for conn in filter(None, (rows, work)):
                    conn.close()
                rows = work = None
                with self._wake:
                    if not self._stopping:
                        self._wake.wait(RETRY_S)
                    elif is_passing(error):
                        break
            except Exception:
                # Without this thread no job of a dead worker returns: better to lose what it choked on.
                log.exception("an event or a sample was not written")
                self._drop_one()
        for conn in filter(None, (rows, work)):
            conn.close()

    def _drop_one(self) -> None:
        """What is first in the way goes, so that the rest gets through."""
        with self._wake:
            if self._events:
                self._events.popleft()
                self.lost_events += 1
            else:
                self.lost_samples += len(self._samples)
                self._samples.clear()

    @staticmethod
    def _tell(error: str, told: tuple[str, float]) -> tuple[str, float]:
        """A disk may stay full for days: the same trouble is logged once a minute."""
        now = time.monotonic()
        if error != told[0] or now - told[1] >= TOLD_EVERY_S:
            log.warning("the database did not take a write: %s", error)
            return error, now
        return told

    def _operate(self, conn: sqlite3.Connection) -> None:
        while True:
            with self._wake:
                if not self._operations:
                    return
                operation = self._operations[0]
            try:
                result = operation.run(conn)
            except (CosydError, sqlite3.Error) as error:
                if is_passing(error):
                    raise  # the operation stays for the next try
                # One that can never succeed must not hold up all that come after it.
                log.error("the operation %s failed: %s", operation.key, error)
                result = _FAILED
            except Exception:
                log.exception("the operation %s failed", operation.key)
                result = _FAILED
            with self._wake:
                # It may have been replaced meanwhile; then the newer one stays.
                if self._operations and self._operations[0] is operation:
                    self._operations.popleft()
            if operation.done is not None and result is not _FAILED:
                self._post(lambda op=operation, value=result: op.done(value))  # type: ignore[misc]

    def _write_events(self, conn: sqlite3.Connection) -> None:
        with self._wake:
            batch, lost = list(self._events)[:500], (self.lost_events, self.lost_samples)
        if not batch:
            return
        if any(lost):
            params = {**batch[0].params, "lost_events": lost[0], "lost_samples": lost[1]}
            written = [replace(batch[0], params=params), *batch[1:]]
        else:
            written = batch
        insert_events(conn, written)
        with self._wake:
            for event in batch:  # those that were pushed out meanwhile are not there any more
                if self._events and self._events[0] is event:
                    self._events.popleft()
            self.lost_events -= lost[0]
            self.lost_samples -= lost[1]

    def _write_samples(self, conn: sqlite3.Connection) -> None:
        with self._wake:
            batch = list(self._samples)
        if not batch:
            return
        insert_samples(conn, batch)
        with self._wake:
            for sample in batch:
                if self._samples and self._samples[0] is sample:
                    self._samples.popleft()
