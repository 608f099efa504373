"""Maintenance children: one at a time, not while memory is LOW, rather not while somebody is spoken for,
run late rather than never. Started from the loop's thread; the work itself is `python -m
pipeline.maintenance`."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
from collections.abc import Callable

from daemon.loop import READ, Loop
from daemon.recorder import Recorder
from daemon.schedule import is_late, tasks, too_soon
from daemon.spawn import Process, Surroundings, spawn
from pipeline.clock import Clock, wall_seconds
from pipeline.paths import StatePaths
from pipeline.profile import Config

log = logging.getLogger(__name__)
SMALL_WAL_BYTES = 4 * 1024**2
"""Below this the write-ahead log is not worth a process."""
TIMEOUT_S = 3600.0
PATIENCE_S = 1800.0
"""How long a task steps back for speech before it runs all the same."""
RETRY_AFTER_FAILURE_S = 900.0


class Housekeeping:
    """`due(name)` says that a task's time has come; `tick` starts what may run."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        config: Config,
        paths: StatePaths,
        surroundings: Surroundings,
        recorder: Recorder,
        memory_low: Callable[[], bool],
        speaking: Callable[[], bool],
    ) -> None:
        self._loop, self._clock, self.config, self._paths = loop, clock, config, paths
        self._surroundings, self._recorder = surroundings, recorder
        self._memory_low, self._speaking = memory_low, speaking
        self._waiting: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._done_at: dict[str, float] = {}
        self._running: tuple[str, Process] | None = None
        self._started_at = clock.wall()
        self.stopped = False

    def due(self, name: str, *, asked: bool = False) -> None:
        """Its time has come, or somebody `asked` for it; asking twice is asking once."""
        if name == "checkpoint" and not asked and self._wal_bytes() < SMALL_WAL_BYTES:
            return
        task = next((task for task in tasks(self.config) if task.name == name), None)
        if task is not None and not asked and too_soon(task, self._done_at.get(name), self._loop.now()):
            return
        self._waiting.setdefault(name, self._loop.now())

    def _wal_bytes(self) -> int:
        wal = self._paths.database.with_name(self._paths.database.name + "-wal")
        try:
            return wal.stat().st_size
        except OSError:
            return 0

    def look_for_late(self, conn: sqlite3.Connection) -> None:
        """Take up what should have run while the machine was off."""
        last: dict[str, str | None] = {
            row[0]: row[1] for row in conn.execute("SELECT name, last_success_at FROM maintenance")
        }
        now = self._clock.wall()
        for task in tasks(self.config):
            at = last.get(task.name)
            if task.name != "checkpoint" and is_late(
                task, wall_seconds(at) if at else None, now, self._started_at
            ):
                self.due(task.name)

    def tick(self) -> None:
        """Start one if one may run."""
        if self._running is not None or self.stopped or self._memory_low():
            return
        now = self._loop.now()
        for name, since in sorted(self._waiting.items(), key=lambda item: item[1]):
            if now < self._not_before.get(name, 0.0) or (self._speaking() and now - since < PATIENCE_S):
                continue
            del self._waiting[name]
            self._start(name)
            return

    def _start(self, name: str) -> None:
        try:
            process = spawn(
                ("pipeline.maintenance", name, "--state", str(self._paths.root)),
                self._surroundings,
                link=False,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            log.error("maintenance %s could not be started: %s", name, error)
            self._later(name)
            return
        self._running = (name, process)
        timer = self._loop.later(TIMEOUT_S * self.config.timeout_factor, process.kill_group)

        def ended(_: int) -> None:
            timer.cancel()
            self._ended(name, process)

        self._loop.watch(process.pidfd, READ, ended)

    def _ended(self, name: str, process: Process) -> None:
        self._running = None
        self._loop.forget(process.pidfd)
        reason = process.reap()
        answer: dict[str, object] = {}
        assert process.popen.stdout is not None
        with process.popen.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)
            lines = (pipe.read() or b"").decode("utf-8", "replace").strip().splitlines()
        if lines:
            try:
                found = json.loads(lines[-1])
                answer = found if isinstance(found, dict) else {}
            except ValueError:
                pass
        if reason == "exit 0":
            self._done_at[name] = self._loop.now()
            self._recorder.event("maintenance_done", None, {"task": name, **answer})
        else:
            log.error("maintenance %s failed (%s): %s", name, reason, answer.get("code", "no reason given"))
            self._later(name)

    def _later(self, name: str) -> None:
        now = self._loop.now()
        self._not_before[name] = now + RETRY_AFTER_FAILURE_S
        self._waiting[name] = now

    def stop(self) -> None:
        """At the end of the supervisor: the tasks are made to be cut short."""
        self.stopped = True
        if self._running is not None:
            self._running[1].kill_group()
