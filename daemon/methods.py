"""What may be asked of the supervisor (CONTRACTS 4): by the CLI on control.sock and by the page on its
link."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from daemon.children import Children
from daemon.connection import Answer
from daemon.guard import Guard
from daemon.lifecycle import State
from daemon.recorder import Recorder, event_object
from daemon.schedule import tasks
from daemon.swap.keeper import SwapKeeper
from daemon.workers import Workers
from daemon.writer import Writer
from pipeline import queue
from pipeline.clock import Clock
from pipeline.codes import CosydError
from pipeline.jobs import VOICE_ID
from pipeline.model_files import ENGINE as COSYVOICE
from pipeline.profile import Config

WEB_DRAIN_S = 30.0
ACTS = frozenset(
    "worker_exited worker_killed web_recycled trim_done trim_failed unloaded drain_started drained "
    "oom_caught degraded restored admission_refused foreign_pressure backoff_started failed recovered "
    "job_requeued".split()
)
"""Kinds that `why` is about: what cosyd did by itself."""
WHY_LIMIT = 20


class Methods:
    """Call it with a method's name; False when there is none of that name."""

    def __init__(
        self,
        config: Callable[[], Config],
        clock: Clock,
        children: Children,
        workers: Workers,
        guard: Guard,
        recorder: Recorder,
        writer: Writer,
        status: Callable[[], dict[str, Any]],
        reload: Callable[[Answer], None],
        maintain: Callable[[str], None],
        swap: SwapKeeper,
    ) -> None:
        self._config, self._clock = config, clock
        self._children, self._workers, self._guard = children, workers, guard
        self._recorder, self._writer, self._status, self._reload = recorder, writer, status, reload
        self._maintain = maintain
        self._table: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "status": lambda params, reply: reply(self._status()),
            "job_queued": self._job_queued,
            "cancel": self._cancel,
            "ensure_worker": self._ensure,
            "admission": self._admission,
            "trim": lambda params, reply: self._guard.trim(reply),
            "restart": self._restart,
            "unload": self._unload,
            "reload": lambda params, reply: self._reload(reply),
            "why": self._why,
            "trace": self._trace,
            "maintenance": self._maintenance,
            "swap_status": swap.status,
            "swap_plan": swap.plan,
            "swap_apply": swap.apply,
        }

    def __call__(self, method: str, params: dict[str, Any], reply: Answer) -> bool:
        found = self._table.get(method)
        if found is None:
            return False
        found(params, reply)
        return True

    def _engine(self, params: dict[str, Any], field: str = "engine") -> str:
        """Raises CosydError(bad_value): a name goes on a command line and into `engines`."""
        name = params.get(field)
        if not isinstance(name, str) or not VOICE_ID.fullmatch(name):
            raise CosydError("bad_value", field=field, reason="not_text")
        known = {
            "builtin",
            COSYVOICE,
            *self._config().engines.extra,
            *self._children.workers,
            *(self._workers.stats or {}),
        }
        if name not in known:
            raise CosydError(
                "bad_value", field=field, reason="not_one_of", value=name, allowed=", ".join(sorted(known))
            )
        return name

    def _job_queued(self, params: dict[str, Any], reply: Answer) -> None:
        self._workers.queued(self._engine(params))
        reply({})

    def _cancel(self, params: dict[str, Any], reply: Answer) -> None:
        job = params.get("job")
        if not isinstance(job, str) or not job:
            raise CosydError("bad_value", field="job", reason="not_text")
        self._children.tell_workers("cancel", {"job": job})
        config = self._config()
        self._writer.do("overdue", lambda conn: queue.end_overdue(conn, self._clock.wall(), config))
        reply({})

    def _ensure(self, params: dict[str, Any], reply: Answer) -> None:
        engine = self._engine(params)
        self._workers.ensure(engine)
        child = self._children.worker(engine).child
        reply({"state": child.state.value, "code": child.code, "params": dict(child.params)})

    def _admission(self, params: dict[str, Any], reply: Answer) -> None:
        engine = self._engine(params)
        child = self._children.worker(engine).child
        if child.state is State.FAILED:
            code = child.code if child.code == "model_missing" else "engine_failed"
            reply(
                {
                    "admit": False,
                    "code": code,
                    "params": {"engine": engine, **child.params},
                    "retry_after_s": 60.0,
                }
            )
            return
        if child.alive:
            reply({"admit": True, "code": None, "params": {}, "retry_after_s": None})
            return
        verdict = self._workers.verdict(engine)
        reply(
            {
                "admit": verdict.admit,
                "code": verdict.code,
                "params": dict(verdict.params),
                "retry_after_s": verdict.retry_after_s,
            }
        )

    def _restart(self, params: dict[str, Any], reply: Answer) -> None:
        target = params.get("target")
        if target not in ("web", "all") and not (isinstance(target, str) and target.startswith("worker:")):
            raise CosydError(
                "bad_value", field="target", reason="not_one_of", value=str(target)[:80],
                allowed="worker:NAME, web, all",
            )  # fmt: skip
        if target == "all":
            for engine in [name for name, slot in self._children.workers.items() if slot.child.alive]:
                self._workers.restart(engine)
            for engine, slot in self._children.workers.items():
                if slot.child.state is State.FAILED:
                    self._workers.restart(engine)
        elif target != "web":
            self._workers.restart(self._engine({"engine": target.removeprefix("worker:")}))
        if target in ("web", "all"):
            self._children.recycle_web(WEB_DRAIN_S, "restart")
        reply({"target": target})

    def _unload(self, params: dict[str, Any], reply: Answer) -> None:
        reply({"unloaded": self._workers.unload(self._engine(params))})

    def _maintenance(self, params: dict[str, Any], reply: Answer) -> None:
        names = [task.name for task in tasks(self._config())]
        name = params.get("task")
        if name not in names:
            raise CosydError(
                "bad_value", field="task", reason="not_one_of", value=str(name)[:80], allowed=", ".join(names)
            )
        self._maintain(name)
        reply({"task": name})

    def _trace(self, params: dict[str, Any], reply: Answer) -> None:
        key = f"trace:{id(reply)}"  # each asker waits for an answer of its own
        self._writer.do(key, lambda conn: self._guard.write_trace(), lambda path: reply({"path": path}))

    def _why(self, params: dict[str, Any], reply: Answer) -> None:
        found = [event_object(event) for event in reversed(self._recorder.recent)]
        acts = [event for event in found if event["kind"] in ACTS]
        reply({"last": acts[0] if acts else None, "events": found[:WHY_LIMIT]})


def load_recent(recorder: Recorder, conn: sqlite3.Connection) -> None:
    """Fill the memory of `why` with what an earlier run did."""
    from pipeline.events import recent_events

    for event in reversed(recent_events(conn, WHY_LIMIT)):
        recorder.recent.append(event)
