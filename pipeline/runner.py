"""The worker's loop: which job next, when to go on, give way or leave, and what a failure means.

Runs in the engine's one thread; `work_available`, `cancel`, `leave` and `trim` are called from others. What
is done with a claimed job is in `pipeline.job_run`, the thread beside in `pipeline.attendant`. Called by
`pipeline.worker` (a process of its own) and `pipeline.alone` (`cosyd say` with no service running).
"""

from __future__ import annotations

import gc
import itertools
import logging
import sqlite3
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from pipeline import queue
from pipeline.attendant import Attendant
from pipeline.audio.files import SegmentWriter
from pipeline.child import HeartbeatState, clean_up
from pipeline.clock import Clock, SystemClock
from pipeline.codes import CosydError
from pipeline.engines.base import Engine, OutOfMemory
from pipeline.faults import card_is_gone
from pipeline.job_run import Bench, JobRun, LeaseLost
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.queue.values import Candidate, Claim, Job, Outcome
from pipeline.store.db import check_place, connect, file_identity, storage_error
from pipeline.take import Interrupted, OpenWriter, Stop, Why
from pipeline.trimming import Report, Trims

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 2.0
"""How often an idle worker looks for work that no message announced (CONTRACTS 4)."""

BUSY_PAUSE_S = 0.1
"""Between two tries at a locked database; each try itself waits as long as the connection does."""

FULL_TRIES = 5
"""Tries to write the last row of a job on a full disk when leaving; then the job is left to its lease."""

FAILURES_IN_A_ROW = 3
"""Jobs that an engine may fail with an unexpected error before it is called broken."""


class WorkerEnds(Exception):
    """This process should end and be started anew; `error` says why."""

    def __init__(self, error: CosydError) -> None:
        super().__init__(str(error))
        self.error = error


class Runner:
    """Works on jobs of the engine `name` as `owner` of their leases until told to leave.

    `notify(method, **params)` tells the supervisor of an out-of-memory. `on_hang(why)` is called from another
    thread when the engine does not come back; it must not return. `only` limits it to one job.
    """

    def __init__(
        self,
        *,
        name: str,
        owner: str,
        paths: StatePaths,
        config: Config,
        on_hang: Callable[[Why], None],
        notify: Callable[..., object] = lambda method, **params: None,
        heartbeat: HeartbeatState | None = None,
        clock: Clock | None = None,
        open_writer: OpenWriter = SegmentWriter,
        only: str | None = None,
    ) -> None:
        self.leaving = threading.Event()
        """Set by `leave`; also the StopFlag of the engine's load."""
        self._name, self._owner, self._paths, self._config = name, owner, paths, config
        self._file: tuple[int, int] | None = None
        self._told = ""
        self._notify, self._open_writer, self._only = notify, open_writer, only
        self._clock = clock or SystemClock()
        self._heartbeat = heartbeat or HeartbeatState()
        self._attendant = Attendant(
            lambda: connect(paths.database, "work"),
            self._clock,
            lease_s=config.lease_s,
            grace_s=config.timeout_factor * config.deadlines.stop_grace_s,
            on_hang=on_hang,
            progress=lambda: self._heartbeat.progress_at,
        )
        self._wake = threading.Event()
        self._pause = threading.Event()  # never set
        self._leave_at: float | None = None
        self._trims = Trims(self._heartbeat)
        self._served: dict[str, float] = {}
        self._failures = self._turns = 0
        self._bench: Bench | None = None

    # From any thread.

    def work_available(self) -> None:
        """Look for work now."""
        self._wake.set()

    def cancel(self, job_id: str) -> bool:
        """Stop `job_id` at once if it is in hand. The wish itself stands in the job's row."""
        return self._attendant.cancel(job_id)

    def leave(self, deadline_s: float = float("inf")) -> None:
        """Take no more segments; give up the one in hand after `deadline_s`. The job is given back."""
        at = self._clock.monotonic() + deadline_s
        self._leave_at = at if self._leave_at is None else min(at, self._leave_at)
        self._attendant.leave(at)
        self.leaving.set()
        self._wake.set()

    def trim(self) -> Future[Report]:
        """Give back memory: at the next chunk what Python and libc hold, between segments the engine too."""
        wish = self._trims.wish()
        self._wake.set()
        return wish

    # From the engine's thread.

    def run(self, engine: Engine) -> None:
        """Work until told to leave. Raises WorkerEnds; a locked or full database is waited for."""
        self.open(engine)
        worked = False
        try:
            while not self.leaving.is_set():
                self._wake.clear()  # before looking: a wake in between is not lost
                self._trims.serve(engine.trim)
                if self._turn_or_wait():
                    worked = True
                elif not self.leaving.is_set() and not self._wake.wait(POLL_S) and worked:
                    worked = False  # a quiet moment after work: nobody waits for these milliseconds
                    clean_up()
        finally:
            self.close()

    def open(self, engine: Engine, *, watch: bool = True) -> None:
        """Connect and, unless `watch` is False, start the attendant. `run` does it."""
        self._file = file_identity(self._paths.database)
        conn = connect(self._paths.database, "work")
        self._bench = Bench(
            engine=engine,
            paths=self._paths,
            config=self._config,
            conn=conn,
            clock=self._clock,
            heartbeat=self._heartbeat,
            attendant=self._attendant,
            open_writer=self._open_writer,
        )
        if watch:
            self._attendant.start()

    def close(self) -> None:
        """End the attendant and the connection; wishes to trim that nobody served are answered."""
        self._attendant.close()
        if self._bench is not None:
            self._bench.conn.close()
        self._trims.refuse()

    def _turn_or_wait(self) -> bool:
        try:
            taken = self.turn()
            self._told = ""
            return taken
        except CosydError as error:
            if error.code not in ("storage_busy", "storage_full"):
                raise
            if self._told != str(error):  # once, not at each look
                self._told = str(error)
                log.warning("no job can be taken: %s", error)
            return False

    def turn(self) -> bool:
        """Take one job and work on it until it ends or gives way. False when none waits."""
        conn, now = self._opened().conn, self._clock.wall()
        check_place(self._paths.database, self._file)
        waiting = self._waiting(conn)
        chosen = queue.next_job(waiting, self._served)
        if chosen is None:
            return False
        try:
            claim = queue.claim(conn, chosen.job_id, self._owner, now, self._config.lease_s)
        except CosydError as error:
            if error.code in ("storage_busy", "storage_full"):
                raise
            # A request that this version cannot read would else be claimed for ever.
            log.error("job %s has an unreadable request", chosen.job_id)
            queue.end_job(conn, chosen.job_id, Outcome("failed", "internal", "unreadable_request"), now)
            return True
        if claim is not None:
            self._work(claim)
        return True

    def _waiting(self, conn: sqlite3.Connection) -> list[Candidate]:
        try:
            waiting = queue.candidates(conn, self._name, self._clock.wall())
        except sqlite3.Error as error:
            raise storage_error(error) or error from error
        return waiting if self._only is None else [c for c in waiting if c.job_id == self._only]

    def _work(self, claim: Claim) -> None:
        stop = Stop(self._clock.monotonic)
        self._attendant.hold(claim.job.id, claim.token, stop)
        self._heartbeat.reset_peaks()
        self._heartbeat.working_on(claim.job.id)
        run = JobRun(self._opened(), claim, stop, patiently=self._patiently, on_chunk=self._trims.serve)
        try:
            self._speak(run, claim.job, stop)
        except LeaseLost:
            log.warning("job %s is no longer ours", claim.job.id)
        except Interrupted:
            self._interrupted(run, stop.why)
        except (OutOfMemory, MemoryError) as error:
            self._out_of_memory(run, claim.job, error)
        except CosydError as error:
            if error.code == "storage_busy":  # only when leaving: see _patiently
                self._end(run.release)
            else:
                self._failed(run, error)
        except Exception as error:
            # The traceback without its message, which may quote what is being spoken.
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("job %s: %s\n%s", claim.job.id, type(error).__name__, where)
            if card_is_gone(error):
                # Each later text would fail too. The job is not ended here: as after any crash, the
                # supervisor gives it back, or calls it poison when it does this twice.
                lost = CosydError("engine_failed", engine=self._name, reason="gpu_context")
                raise WorkerEnds(lost) from None
            self._failed(run, CosydError("internal", reason=type(error).__name__))
        finally:
            self._attendant.let_go()
            self._heartbeat.working_on(None)
        if self._failures >= FAILURES_IN_A_ROW:
            raise WorkerEnds(CosydError("engine_failed", engine=self._name, reason="fails_every_job"))

    def _speak(self, run: JobRun, job: Job, stop: Stop) -> None:
        """Segment by segment; between two of them others may have a better claim to the engine."""
        me = Candidate(job.id, job.lane, job.source, job.client, job.priority, job.created_at)
        run.prepare()
        for number, segment in enumerate(run.remaining()):
            self._trims.serve(self._opened().engine.trim)
            if stop.is_set():
                raise Interrupted
            if self.leaving.is_set() or (number and self._gives_way(me)):
                self._end(run.release)
                return
            run.speak(segment)
            self._failures = 0
            self._remember(me)
        run.complete()
        log.info("job %s done", job.id)

    def _gives_way(self, me: Candidate) -> bool:
        try:
            return queue.gives_way(me, self._waiting(self._opened().conn), self._served)
        except CosydError:
            return False  # go on with what is in hand, and look again after the next segment

    def _remember(self, me: Candidate) -> None:
        self._served.pop(me.client_key, None)
        self._turns += 1
        self._served[me.client_key] = self._turns
        while len(self._served) > 1000:  # clients come and go; the longest unserved goes first
            del self._served[next(iter(self._served))]

    def _interrupted(self, run: JobRun, why: Why | None) -> None:
        if why is Why.CANCEL:
            self._end(lambda: run.fail(CosydError("cancelled")))
        elif why is Why.DEADLINE:
            self._end(lambda: run.fail(CosydError("deadline")))
        elif why is Why.LEAVE:
            self._end(run.release)
        else:
            log.warning("a job was taken away while it was spoken")

    def _failed(self, run: JobRun, error: CosydError) -> None:
        if error.code in ("internal", "engine_failed"):
            self._failures += 1
        log.warning("a job failed: %s", error.code)
        self._end(lambda: run.fail(error))

    def _out_of_memory(self, run: JobRun, job: Job, error: OutOfMemory | MemoryError) -> None:
        resource = error.resource if isinstance(error, OutOfMemory) else "ram"
        error.__traceback__ = None  # its frames hold the memory that is needed now
        gc.collect()
        sizes = self._heartbeat.sample()
        footprint = {"rss_bytes": sizes["rss_bytes"], "vram_bytes": sizes["vram_bytes"]}
        self._notify("oom", resource=resource, footprint=footprint, job=job.id)
        self._end(run.retry_leaner)
        raise WorkerEnds(CosydError("out_of_memory", resource=resource))

    def _end(self, write: Callable[[], None]) -> None:
        """Write how a job ended, however long the disk is full: without that no other job could be taken
        either. When it cannot be done, its lease runs out and others end it."""
        for attempt in itertools.count(1):
            try:
                write()
                return
            except LeaseLost:
                return
            except CosydError as error:
                if attempt == 1:
                    log.warning("the end of a job is not written: %s", error.code)
                if error.code != "storage_full" or (self.leaving.is_set() and attempt >= FULL_TRIES):
                    return
                self._heartbeat.progress()  # waiting for room is not being stuck
                self._pause.wait(POLL_S)
            except sqlite3.Error as error:
                log.error("the end of a job was not written: %s", error)
                return

    def _patiently(self, call: Callable[[], T]) -> T:
        """`call`, again and again while the database is locked: that is no reason for a worker to die.

        Only a worker that has to leave gives up, with CosydError(storage_busy).
        """
        while True:
            try:
                return call()
            except (CosydError, sqlite3.Error) as error:
                known = error if isinstance(error, CosydError) else storage_error(error)
                if known is None:
                    raise
                if known.code != "storage_busy" or self._must_be_gone():
                    raise known from error
            self._heartbeat.progress()  # waiting for others is not being stuck
            self._pause.wait(BUSY_PAUSE_S)

    def _must_be_gone(self) -> bool:
        return self._leave_at is not None and self._clock.monotonic() >= self._leave_at

    def _opened(self) -> Bench:
        if self._bench is None:
            raise RuntimeError("the runner was not opened")
        return self._bench
