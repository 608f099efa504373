"""The supervisor: assembles its parts, turns the loop, ends in order. `python -m daemon.supervisor`, by
`cosyd run`.

One thread owns all state (`daemon.loop`); the writer thread and the scheduler's only take and post. How it
comes up is in `daemon.startup`. Imports neither torch, gradio, numpy, pandas, click nor rich: 40 MB is its
budget.
"""

from __future__ import annotations

from daemon import interrupt

if __name__ == "__main__":
    interrupt.end_quietly()

import logging
import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from daemon import lifecycle
from daemon.cgroups import Groups
from daemon.children import Children
from daemon.configuration import Options, concerns_children, reread
from daemon.connection import Answer
from daemon.control_server import ControlServer
from daemon.deaths import Deaths
from daemon.fitting import Fitting
from daemon.gpu_reader import make_reader
from daemon.guard import Guard, web_fits
from daemon.housekeeping import Housekeeping
from daemon.lifecycle import State
from daemon.loop import Loop
from daemon.methods import WEB_DRAIN_S, Methods, load_recent
from daemon.notifier import Notifier
from daemon.policy import Level
from daemon.queue_reader import QueueReader
from daemon.ram_reader import RamReader
from daemon.recorder import Recorder, telemetry_row
from daemon.schedule import Schedule
from daemon.spawn import Surroundings
from daemon.startup import Doors, announce
from daemon.status import View, status_line
from daemon.store_watch import StoreWatch
from daemon.swap.client import SwapClient
from daemon.swap.keeper import SwapKeeper
from daemon.teller import Teller
from daemon.warm import Warm
from daemon.workers import Workers
from daemon.writer import Writer
from pipeline import queue
from pipeline.child import lease_owner
from pipeline.clock import Clock, utc_text
from pipeline.codes import EX_SOFTWARE, CosydError
from pipeline.messages import error_text, terminal_language
from pipeline.paths import StatePaths
from pipeline.profile import Config
from pipeline.store.db import connect

log = logging.getLogger("cosyd")
QUIET_PUSH_S = 2.0
"""How often the numbers alone are looked at for news; a change of state is told at once."""
LATE_EVERY_S = 600.0
CLOCK_JUMP_S = 60.0
WEB_NEED_BYTES = 150 * 1024**2
FLUSH_S = 5.0


LOOK_AFTER_S = 0.01
"""After the heartbeats, which come at whole seconds."""


def until_look(now: float, cadence_s: float) -> float:
    """Seconds until the next look: at whole multiples of the cadence, a moment after the heartbeats."""
    return cadence_s - (now - LOOK_AFTER_S) % cadence_s


class Supervisor:
    """Everything that lives as long as the process. `run` returns the exit status."""

    def __init__(
        self,
        options: Options,
        config: Config,
        paths: StatePaths,
        doors: Doors,
        instance: str,
        clock: Clock,
        *,
        environ: Mapping[str, str] = os.environ,
        web_module: tuple[str, ...] = ("ui",),
        worker_module: tuple[str, ...] = ("pipeline.worker",),
    ) -> None:
        self.options, self.config, self.paths, self.doors = options, config, paths, doors
        self._instance, self._clock, self._environ = instance, clock, environ
        self.loop = Loop(clock)
        self.notifier = Notifier(environ)
        self.writer = Writer(paths.database, self.loop.post)
        self.recorder = Recorder(self.writer, clock)
        surroundings = Surroundings(instance, paths.root, paths.effective_config, config, environ)
        self.children = Children(
            self.loop, clock, config, surroundings, doors.sockets, self.recorder, self.writer,
            self._page_methods, self._changed, web_module, worker_module,
        )  # fmt: skip
        gpu = self._gpu = make_reader(
            self.loop, config, surroundings.child_environment(),
            lambda old, new: self.guard.gpu_changed(old, new),
        )  # fmt: skip
        ram = RamReader()
        self.deaths = self.children.deaths = Deaths(ram, Groups.take())
        self.guard = Guard(
            self.loop, config, self.children, self.recorder, ram, gpu, lambda: self.workers.work
        )
        self.children.foreign_ram = lambda: "ram" in self.guard.state.foreign
        self.fitting = Fitting(
            self.loop,
            config,
            paths,
            self.recorder,
            self.children,
            lambda: gpu.uuid if gpu is not None else "",
        )
        self.guard.trace_file = paths.run / "trace.jsonl"
        self.workers = Workers(
            self.loop, clock, config, self.children, self.writer, self.recorder, self.guard.admit,
            lambda: self.guard.sample.free_bytes("vram"),
            Warm(lambda: self.config, clock, paths.root).engines, self.fitting.forgive,
        )  # fmt: skip
        self.housekeeping = Housekeeping(
            self.loop, clock, config, paths, surroundings, self.recorder,
            memory_low=lambda: self.guard.state.level is not Level.OK, speaking=self._speaking,
        )  # fmt: skip
        self.swap = SwapKeeper(
            self.loop, SwapClient(self.loop), self.recorder, lambda: self.config,
            automatic=bool(environ.get("RUNTIME_DIRECTORY")),
        )  # fmt: skip
        self.methods = Methods(
            lambda: self.config, clock, self.children, self.workers, self.guard, self.recorder, self.writer,
            lambda: self.teller.status(), lambda reply: self.reload(reply),
            lambda task: self.housekeeping.due(task, asked=True), self.swap,
        )  # fmt: skip
        self.control = ControlServer(self.loop, paths.control_socket, self.methods)
        self.teller = Teller(self.loop, self._view, self.children, self.control, self.notifier)
        self.store = StoreWatch(paths.database, self.loop, self.children, self._changed)
        self.schedule = Schedule(config, lambda name: self.loop.post(lambda: self._due(name)))
        self.recorder.on_event = self.teller.event
        self._queue = QueueReader(paths.database, clock)
        self._started_at = clock.wall()
        self._offset = clock.wall() - clock.monotonic()
        self._sampled_at = float("-inf")
        self._looked_at = float("-inf")
        self._was_ready = False
        self._announced = False
        self._late_at = clock.monotonic()
        self._status = 0
        self._stop_asked = 0

    # -- life --------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until a signal; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.on_signal(number, self.stop)
        self.loop.on_signal(signal.SIGHUP, self._hangup)
        try:
            with closing(connect(self.paths.database, "read", busy_s=5.0)) as conn:
                load_recent(self.recorder, conn)
                self.workers.remember(conn)
        except (CosydError, sqlite3.Error) as error:
            log.warning("earlier events cannot be read: %s", error)
        self.writer.start()
        self.recorder.event("started", None, {"profile": self.config.profile, "instance": self._instance})
        # Nobody of an earlier run is alive (the lock, the leftovers): what it held goes back at once.
        self.writer.do("return", lambda conn: queue.requeue_running(conn, self._clock.wall()), self._returned)
        self.schedule.start()
        self.swap.start()
        self._tick()
        self.loop.run()
        return self._end()

    def _returned(self, found: list[queue.Requeued]) -> None:
        for job in found:
            if not job.failed:
                self.recorder.event("job_requeued", None, {"job": job.job_id, "engine": job.engine})

    def stop(self) -> None:
        """Asked to end: in order, or at once when asked again."""
        self._stop_asked += 1
        if self._stop_asked > 1:
            self.children.kill_all()
        else:
            self.notifier.stopping()
            self.housekeeping.stop()
            grace_s = self.config.deadlines.stop_grace_s * self.config.timeout_factor
            self.children.stop_all(grace_s)
            self._changed()
        self._look_for_end()

    def _hangup(self) -> None:
        """SIGHUP reloads under systemd; with a terminal it means that the terminal is gone."""
        if self.notifier.active:
            self.reload(lambda value: None)
        else:
            self.stop()

    def _look_for_end(self) -> None:
        if self._stop_asked and not self.children.alive():
            self.loop.stop()

    def _end(self) -> int:
        self.schedule.close()
        self.control.close()
        if self._gpu is not None:
            self._gpu.close()
        self.recorder.event("stopped", None, {"status": self._status})
        if not self.writer.stop(FLUSH_S):
            log.error("the last events could not be written")
        self._queue.close()
        for sock in self.doors.sockets.values():
            sock.close()
        self.loop.close()
        return self._status

    # -- the tick ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        failures = self.loop.failures
        try:
            self._round()
        finally:
            self.loop.later(until_look(self.loop.now(), self.guard.cadence_s), self._tick)
        if self.loop.failures == failures:
            if not self._announced:
                self._announced = True
                self.notifier.ready(status_line(self._view()))
            self.notifier.round_done()

    def _round(self) -> None:
        now = self.loop.now()
        self._look_at_clock()
        self.guard.tick()
        self.deaths.look(self.guard.sample.ram, self.guard.state.level, self.config, now)
        self.swap.tick(self.guard.state.ram.level, self.guard.sample.ram)
        self.store.tick()
        self.children.tick()
        self._keep_web()
        self.workers.look(self._queue.read())
        self.fitting.look(self.guard.state.level is Level.OK and self.workers.work == 0)
        self.housekeeping.tick()
        if now - self._sampled_at >= self.config.guard.sample_every_s:
            self._sampled_at = now
            self.writer.sample(telemetry_row(self.guard.sample, self._clock.wall()))
        if now - self._late_at >= LATE_EVERY_S and self._queue.conn is not None:
            self._late_at = now
            self.housekeeping.look_for_late(self._queue.conn)
        if now - self._looked_at >= QUIET_PUSH_S or self.guard.state.level is not Level.OK:
            self._looked_at = now
            self._changed()

    def _look_at_clock(self) -> None:
        offset = self._clock.wall() - self._clock.monotonic()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > CLOCK_JUMP_S:
            self.recorder.event("clock_jumped", None, {"jump_s": round(jump, 1)})
            self.schedule.clock_jumped()
            if jump > 0:
                # After a suspend a CUDA context is dead while its process looks well: once anew.
                for engine, slot in list(self.children.workers.items()):
                    if slot.child.beat.vram_bytes:
                        self.workers.restart(engine)

    def _keep_web(self) -> None:
        web = self.children.web
        if self.children.stopping:
            return
        if web.child.state in (State.ABSENT, State.WAITING_MEMORY):
            if web_fits(self.guard.sample, self.config, web.child.ready_rss_bytes or WEB_NEED_BYTES):
                self.children.start(web)
            else:
                params = {"engine": "web", "short_bytes": WEB_NEED_BYTES, "resource": "ram"}
                step = lifecycle.wait_memory(web.child, "waiting_memory", params, self.loop.now())
                self.children.apply(web, step)
        elif web.child.state is State.FAILED and not self._was_ready:
            # Never came up: whoever started us should know, with the code's own exit status.
            code = web.child.code or "internal"
            log.error("the page does not start: %s %s", code, dict(web.child.params))
            self.notifier.failed(error_text(code, terminal_language(), web.child.params))
            self._status = CosydError(code).info.exit_status if code != "engine_failed" else EX_SOFTWARE
            self.stop()

    def _speaking(self) -> bool:
        stats = self.workers.stats
        return stats is not None and any(found.running for found in stats.values())

    # -- the schedule ------------------------------------------------------------------------------

    def _due(self, name: str) -> None:
        if self._stop_asked:
            return
        if name != "expire":
            self.housekeeping.due(name)
            return
        holding = tuple(
            (lease_owner(self._instance, slot.process.pid), slot.child.beat.job)
            for slot in self.children.alive()
            if slot.process is not None and slot.child.beat.job is not None
        )
        if not holding and self.workers.work == 0:
            return  # no job is queued, running or held: nothing can be late
        config = self.config

        def expire(conn: sqlite3.Connection) -> list[queue.Requeued]:
            now = self._clock.wall()
            queue.end_overdue(conn, now, config)
            return queue.expire_leases(conn, now, holding=holding)

        self.writer.do("expire", expire, self._returned)

    # -- what others do with it --------------------------------------------------------------------

    def _view(self) -> View:
        return View(
            pid=os.getpid(),
            started_at=utc_text(self._started_at),
            sample=self.guard.sample,
            state=self.guard.state,
            gpu_state=self.guard.gpu_state,
            web=self.children.web.child,
            workers={name: slot.child for name, slot in self.children.workers.items()},
            stats=self.workers.stats,
            reasons=self.workers.reasons,
            others=self.guard.others,
            profile=self.config.profile,
            web_url=self.doors.url,
            stopping=bool(self._stop_asked),
            storage=self.store.trouble,
        )

    def _changed(self) -> None:
        """Something may have changed: is it the end, is it the first time that the page is there?"""
        if self._stop_asked:
            self._look_for_end()
        if not self._was_ready and self.children.web.child.state is State.READY:
            self._was_ready = True
            self.recorder.event("ready", None, {"url": self.doors.url})
            announce(self.doors, self.options, self.writer, self._clock, self._environ)
        self.teller.changed()

    def reload(self, reply: Answer) -> None:
        """Read all layers anew. Children whose values changed come back, one piece later and without a gap;
        what needs other sockets takes effect with the next start."""
        self.notifier.reloading()
        try:
            fresh = reread(self.options, self._environ, self.paths, self.config)
        except CosydError as error:
            log.error("the configuration was not read again: %s", error)
            self.notifier.ready(status_line(self._view()))
            reply(error)
            return
        changed = concerns_children(self.config, fresh)
        self.config = self.children.config = self.guard.config = fresh
        self.workers.config = self.housekeeping.config = self.fitting.config = fresh
        self.recorder.event("config_reloaded", None, {})
        if changed:
            for engine in [name for name, slot in self.children.workers.items() if slot.child.alive]:
                self.workers.restart(engine, "config")
            self.children.recycle_web(WEB_DRAIN_S, "config")
        self.notifier.ready(status_line(self._view()))
        reply({})

    def _page_methods(self, method: str, params: dict[str, Any], reply: Answer) -> bool:
        return self.methods(method, params, reply)


if __name__ == "__main__":
    import sys

    from daemon.startup import main

    sys.exit(main())
