"""Which workers are wanted, and their start and end: demand, admission, keep_alive, reasons to wait.

`look` is called each tick with what the queue says; `queued` and `ensure` come in between, so that a request
does not wait for the tick.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace

from daemon import footprint, lifecycle
from daemon.admission import Need, Verdict, default_need
from daemon.children import Children, Slot
from daemon.demand import Demand, is_wanted
from daemon.footprint import Footprint, GivingBack
from daemon.lifecycle import State
from daemon.loop import Loop
from daemon.recorder import Recorder
from daemon.writer import Writer
from pipeline import queue
from pipeline.clock import Clock
from pipeline.profile import Config
from pipeline.queue import EngineQueue

ENSURED_S = 30.0
"""The least time for which an engine that was asked for is kept, whatever keep_alive says."""
REMEMBERED = 200
"""Recordings that are looked at for what the engines needed."""
BACK_EVERY_S = 0.25
"""How often it is looked whether VRAM came back, before the next start."""


class Workers:
    """`verdict(engine, need)` is the admission of this moment, `vram_free` what the card has free, `warm` the
    engines to be loaded ahead of work at this time of day. `forgiven` hears of a person's restart."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        config: Config,
        children: Children,
        writer: Writer,
        recorder: Recorder,
        verdict: Callable[[str, Need], Verdict],
        vram_free: Callable[[], int | None] = lambda: None,
        warm: Callable[[], frozenset[str]] = frozenset,
        forgiven: Callable[[str], None] = lambda engine: None,
    ) -> None:
        self._loop, self._clock, self.config = loop, clock, config
        self._children, self._writer, self._recorder, self._verdict = children, writer, recorder, verdict
        self.demand: dict[str, Demand] = {}
        self._vram_free, self._warm, self._forgiven = vram_free, warm, forgiven
        self.footprints: dict[str, Footprint] = {}
        self._held: dict[str, tuple[int, int]] = {}
        self._coming_back: dict[str, GivingBack] = {}
        self.reasons: dict[str, str | None] = {}
        self.stats: Mapping[str, EngineQueue] | None = {}

    def remember(self, conn: sqlite3.Connection) -> None:
        """What the engines needed in an earlier run, so that the first start is no guess."""
        rows = conn.execute(
            "SELECT engine, peak_rss_bytes, peak_vram_bytes FROM generations WHERE peak_rss_bytes IS NOT NULL"
            " ORDER BY seq DESC LIMIT ?",
            (REMEMBERED,),
        ).fetchall()
        for engine in {row["engine"] for row in rows}:
            found = [
                (row["peak_rss_bytes"], row["peak_vram_bytes"]) for row in rows if row["engine"] == engine
            ]
            self.footprints.setdefault(engine, footprint.remembered(found))

    @property
    def work(self) -> int | None:
        """Jobs that wait or run, None when the queue could not be read."""
        return None if self.stats is None else sum(s.queued + s.running for s in self.stats.values())

    def look(self, stats: Mapping[str, EngineQueue] | None) -> None:
        """The queue as it is now, None when it could not be read."""
        now = self._loop.now()
        self.stats = stats
        warm = self._warm()
        engines = {*self.demand, *(stats or {}), *self._children.workers, *warm}
        for engine in sorted(engines):
            old = self.demand.get(engine, Demand())
            found = stats.get(engine) if stats is not None else None
            if stats is None:
                demand = replace(old, queued=None, running=None)
            elif found is None:
                demand = replace(old, queued=0, running=0)
            else:
                demand = replace(old, queued=found.queued, running=found.running)
            slot = self._children.worker(engine)
            if (found is not None and found.queued + found.running > 0) or slot.child.busy:
                demand = replace(demand, active_at=now)
            self.demand[engine] = demand
            self._learn(slot)
            self.decide(engine)

    def _learn(self, slot: Slot) -> None:
        """What it holds while it is ready, and what the card has to give back when it is gone."""
        child, engine = slot.child, slot.engine
        if engine is None:
            return
        old = self.footprints.get(engine, Footprint())
        if slot.process is None:
            if (held := self._held.pop(engine, None)) is not None:
                wait = footprint.giving_back(self._vram_free(), held[1], self._loop.now())
                if wait is not None:
                    self._coming_back[engine] = wait
            return
        if child.state is not State.READY:
            return
        beat, pid = child.beat, slot.process.pid
        if self._held.get(engine, (0, 0))[0] != pid:
            old = footprint.loaded(old, child.ready_rss_bytes, child.ready_vram_bytes)
        self._held[engine] = (pid, beat.vram_bytes or 0)
        self.footprints[engine] = footprint.beat(old, beat.job, beat.rss_bytes, beat.vram_bytes)

    def need(self, engine: str) -> Need:
        """What it takes to start it."""
        known = footprint.need(self.footprints[engine]) if engine in self.footprints else None
        return known or default_need(engine)

    def verdict(self, engine: str) -> Verdict:
        """Whether its worker could be started now."""
        return self._verdict(engine, self.need(engine))

    def decide(self, engine: str) -> None:
        """Start, keep or let go of one engine's worker."""
        slot = self._children.worker(engine)
        child, now = slot.child, self._loop.now()
        demand = self.demand.setdefault(engine, Demand())
        warm = engine in self._warm()
        wanted = is_wanted(demand, keep_alive_s=self.config.keep_alive, now=now, warm=warm)
        if self._children.stopping:
            return
        if child.state in (State.ABSENT, State.WAITING_MEMORY):
            if wanted or child.again:
                self._try_start(slot)
            elif wanted is False:
                slot.child = lifecycle.stop_waiting(child, now)
        elif child.state is State.READY and wanted is False and not child.busy:
            self._recorder.event(
                "unloaded", None,
                {"engine": engine, "child": slot.name, "reason": "idle", "rss_bytes": child.beat.rss_bytes},
                freed_bytes=child.beat.rss_bytes,
            )  # fmt: skip
            self._stop(slot, "idle")
        elif child.state is State.FAILED and (demand.queued or 0) > 0:
            self._fail_jobs(slot)
        self._say_why(slot)

    def _try_start(self, slot: Slot) -> None:
        engine = slot.engine
        assert engine is not None
        if not footprint.is_back(self._coming_back.get(engine), self._vram_free(), self._loop.now()):
            self._loop.later(BACK_EVERY_S, lambda: self.decide(engine))
            return
        self._coming_back.pop(engine, None)
        verdict = self.verdict(engine)
        if verdict.admit:
            self._children.start(slot)
        else:
            step = lifecycle.wait_memory(
                slot.child, verdict.code or "waiting_memory", verdict.params, self._loop.now()
            )
            self._children.apply(slot, step)

    def _stop(self, slot: Slot, reason: str) -> None:
        grace_s = self.config.deadlines.stop_grace_s * self.config.timeout_factor
        self._children.apply(slot, lifecycle.stop(slot.child, reason, grace_s, self._loop.now()))

    def _fail_jobs(self, slot: Slot) -> None:
        engine, code = slot.engine, slot.child.code or "engine_failed"
        assert engine is not None
        if code not in ("model_missing", "engine_failed", "out_of_memory"):
            code = "engine_failed"
        self._writer.do(
            f"fail:{engine}",
            lambda conn: queue.fail_engine_jobs(conn, engine, self._clock.wall(), code),
        )

    def _say_why(self, slot: Slot) -> None:
        """`wait_reason` of the queued jobs; written when it changed, or when new ones may lack it."""
        engine = slot.engine
        assert engine is not None
        reason = wait_reason(slot.child)
        queued = self.demand[engine].queued or 0
        if reason == self.reasons.get(engine) and (reason is None or queued == 0):
            return
        if queued == 0 and reason is not None:
            return
        self.reasons[engine] = reason
        self._writer.do(f"reason:{engine}", lambda conn: queue.set_wait_reason(conn, engine, reason))

    # -- wishes that do not wait for the tick --------------------------------------------------------

    def queued(self, engine: str) -> None:
        """A job was committed: wake the worker, or start it at once."""
        old = self.demand.get(engine, Demand())
        self.demand[engine] = replace(old, queued=max(1, old.queued or 0), active_at=self._loop.now())
        slot = self._children.worker(engine)
        if slot.link is not None and slot.child.state is State.READY:
            slot.link.notify("work_available", {})
        else:
            self.decide(engine)

    def ensure(self, engine: str) -> None:
        """Load it ahead of work. It stays for keep_alive, and for half a minute at least."""
        now = self._loop.now()
        old = self.demand.get(engine, Demand())
        until = max(old.pinned_until, now + ENSURED_S)
        self.demand[engine] = replace(old, active_at=now, pinned_until=until)
        self.decide(engine)

    def unload(self, engine: str) -> bool:
        """Let it go now, unless it is busy: then after its piece. False when there is nothing to unload."""
        slot = self._children.workers.get(engine)
        if slot is None or not slot.child.alive:
            return False
        self.demand[engine] = replace(
            self.demand.get(engine, Demand()), active_at=-math.inf, pinned_until=0.0
        )
        if slot.child.busy:
            self._children.apply(
                slot, lifecycle.drain(slot.child, "unload", self._patience_s(), self._loop.now())
            )
        else:
            self._recorder.event(
                "unloaded", None,
                {"engine": engine, "child": slot.name, "reason": "asked",
                 "rss_bytes": slot.child.beat.rss_bytes},
                freed_bytes=slot.child.beat.rss_bytes,
            )  # fmt: skip
            self._stop(slot, "unload")
        return True

    def restart(self, engine: str, reason: str = "restart") -> None:
        """By a person: the budget is fresh; a running one finishes its piece and comes back."""
        slot, now = self._children.worker(engine), self._loop.now()
        self._forgiven(engine)
        slot.child = lifecycle.forgive(slot.child, now)
        if slot.child.alive:
            step = lifecycle.drain(slot.child, reason, self._patience_s(), now, again=True)
            self._children.apply(slot, step)
        else:
            slot.child = replace(slot.child, again=True)
        self.ensure(engine)

    def _patience_s(self) -> float:
        """How long a piece may take to be finished when nothing is urgent."""
        return lifecycle.stuck_after_s(self.config)


def wait_reason(child: lifecycle.Child) -> str | None:
    """Why queued jobs of this worker do not run now; None when they just wait for their turn."""
    match child.state:
        case State.WAITING_MEMORY:
            return child.code
        case State.FAILED:
            return child.code if child.code == "model_missing" else "engine_failed"
        case State.STARTING:
            return "starting"
        case State.BACKOFF:
            return "backoff"
        case State.DRAINING | State.STOPPING:
            return "draining"
        case _:
            return None
