"""Carries out what `daemon.lifecycle` decides: processes, their links, their ends. One loop, no waiting.

A slot is one child: the web, its successor while it is recycled, old webs that finish their streams, and
one worker an engine. What a child says arrives in `_called`; what becomes of its jobs when it dies goes
through the writer thread.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from daemon import lifecycle
from daemon.connection import Answer, Connection, MethodUnknown
from daemon.deaths import Death, Deaths
from daemon.lifecycle import Beat, Child, Kill, Record, Send, Spawn, State
from daemon.loop import READ, Loop
from daemon.recorder import Recorder
from daemon.returning import return_jobs
from daemon.sample import OwnProcess
from daemon.spawn import Process, Surroundings, spawn
from daemon.writer import Writer
from pipeline import queue
from pipeline.child import lease_owner
from pipeline.clock import Clock
from pipeline.planning.environment import WEB as WEB_ROLE
from pipeline.planning.environment import worker as worker_role
from pipeline.profile import Config

log = logging.getLogger(__name__)
WEB = "web"
WEB_MODULE = ("ui",)
LINK_LOST_S = 1.0
"""How long a child may live on after it closed its link."""
SILENT_FOR_WEB = frozenset({"worker_started", "worker_ready", "drain_started", "drained"})
"""Events that speak of voice engines; the page has its own (`ready`, `web_recycled`)."""

Methods = Callable[[str, dict[str, Any], Answer], bool]
"""The supervisor's own methods for the page: False when there is none of that name."""


@dataclass(eq=False, slots=True)
class Slot:
    """One child and, while it lives, its process and link."""

    child: Child
    owner: str = ""
    process: Process | None = None
    link: Connection | None = None
    retiring: bool = False
    on_change: list[Callable[[Slot], None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.child.name

    @property
    def engine(self) -> str | None:
        """The engine of a worker, None for the web."""
        return self.name.partition(":")[2] or None


class Children:
    """All children. `web_module` and `worker_module` are what is run (tests run fakes)."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        config: Config,
        surroundings: Surroundings,
        listen: Mapping[str, socket.socket],
        recorder: Recorder,
        writer: Writer,
        methods: Methods,
        on_change: Callable[[], None],
        web_module: tuple[str, ...] = WEB_MODULE,
        worker_module: tuple[str, ...] = ("pipeline.worker",),
    ) -> None:
        self._loop, self._clock, self.config = loop, clock, config
        self._surroundings, self._listen = surroundings, listen
        self._recorder, self._writer, self._methods, self._on_change = recorder, writer, methods, on_change
        self._web_module, self._worker_module = web_module, worker_module
        self.web = Slot(Child(WEB))
        self.successor: Slot | None = None
        self.retired: list[Slot] = []
        self.workers: dict[str, Slot] = {}
        self.stopping = False
        self.held = False
        """Nobody is started now: `daemon.store_watch`."""
        self.fitted: Callable[[str, Surroundings], Surroundings] = lambda engine, plain: plain
        """What a worker that starts is given instead of what all children get (`daemon.fitting`)."""
        self.on_oom: Callable[[Slot, str], None] = lambda slot, resource: None
        """A worker said, or the kernel showed, that memory ran out: resource `ram` or `vram`."""
        self.deaths: Deaths | None = None
        self.foreign_ram: Callable[[], bool] = lambda: False
        """Whether others hold the RAM; then being leaner is no cure."""

    # -- looking -----------------------------------------------------------------------------------

    def slots(self) -> Iterable[Slot]:
        """All slots, alive or not."""
        yield self.web
        if self.successor is not None:
            yield self.successor
        yield from self.retired
        yield from self.workers.values()

    def worker(self, engine: str) -> Slot:
        """The slot of an engine's worker, made when first asked for."""
        return self.workers.setdefault(engine, Slot(Child(f"worker:{engine}")))

    def alive(self) -> list[Slot]:
        """Slots that have a process."""
        return [slot for slot in self.slots() if slot.process is not None]

    def own_processes(self) -> tuple[OwnProcess, ...]:
        """What the policy sees. A child that is being started or ended is no target; a retiring web is not
        named `web`, so nothing is done to it twice."""
        return tuple(
            OwnProcess(
                name=slot.name if not slot.retiring else f"{slot.name}:old",
                pid=slot.process.pid,
                rss_bytes=slot.child.beat.rss_bytes if slot.child.beat.rss_bytes is not None else None,
                vram_bytes=slot.child.beat.vram_bytes,
                ready=slot.child.state is State.READY and not slot.retiring,
                idle=slot.child.beat.job is None,
                base_rss_bytes=slot.child.ready_rss_bytes,
            )
            for slot in self.slots()
            if slot.process is not None and not slot.retiring and slot is not self.successor
        )

    def find(self, name: str, pid: int) -> Slot | None:
        """The slot of `name` if its process is still the one meant."""
        for slot in self.slots():
            if slot.name == name and slot.process is not None and slot.process.pid == pid:
                return slot
        return None

    # -- wishes ------------------------------------------------------------------------------------

    def start(self, slot: Slot) -> None:
        """Start it if it is absent."""
        if not self.stopping and not self.held:
            self.apply(slot, lifecycle.start(slot.child, self._loop.now(), self.config))

    def recycle_web(self, deadline_s: float, reason: str) -> bool:
        """A new web on the same sockets; when it is ready the old one finishes its streams and ends. False
        when there is one under way already."""
        if self.successor is not None or self.stopping or self.held:
            return False
        if self.web.child.state is not State.READY:
            self.web.child = lifecycle.forgive(self.web.child, self._loop.now())
            self.start(self.web)
            return True
        fresh = Slot(Child(WEB, restarts=self.web.child.restarts))
        self.successor = fresh

        def changed(slot: Slot) -> None:
            if slot.child.state is State.READY:
                old, self.web, self.successor = self.web, slot, None
                old.retiring = True
                slot.on_change.clear()
                self._recorder.event("web_recycled", None, {"reason": reason, "child": WEB})
                if old.process is not None:
                    self.retired.append(old)
                    step = lifecycle.drain(old.child, reason, deadline_s, self._loop.now())
                    self.apply(old, step)
            elif not slot.child.alive:
                self.successor = None  # the old one goes on; the exit is on record

        fresh.on_change.append(changed)
        self.start(fresh)
        return True

    def kill(self, slot: Slot, reason: str, *, charge: bool = False) -> None:
        """End it by force."""
        self.apply(slot, lifecycle.kill(slot.child, reason, self._loop.now(), charge=charge))

    def stop_all(self, grace_s: float) -> None:
        """Workers finish their piece, webs their streams; after `grace_s` they are killed."""
        self.stopping = True
        now = self._loop.now()
        for slot in list(self.slots()):
            if slot.engine is not None:
                self.apply(slot, lifecycle.drain(slot.child, "stop", grace_s, now))
            else:
                self.apply(slot, lifecycle.stop(slot.child, "stop", grace_s, now))

    def kill_all(self, reason: str = "stop") -> None:
        """Now."""
        self.stopping = True
        for slot in list(self.alive()):
            self.kill(slot, reason)

    def tick(self) -> None:
        """What time alone does to each."""
        for slot in list(self.slots()):
            self.apply(slot, lifecycle.tick(slot.child, self._loop.now(), self.config))

    def tell_workers(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification to each worker that is ready or draining."""
        for slot in self.workers.values():
            if slot.link is not None and slot.child.state in (State.READY, State.DRAINING):
                slot.link.notify(method, params)

    # -- effects -----------------------------------------------------------------------------------

    def apply(self, slot: Slot, step: lifecycle.Step) -> None:
        """Take the new state and carry the effects out."""
        before = slot.child.state
        slot.child, effects = step
        for effect in effects:
            match effect:
                case Spawn():
                    self._spawn(slot)
                case Send(method, params):
                    if slot.link is not None:
                        slot.link.notify(method, params)
                case Kill():
                    if slot.process is not None:
                        slot.process.kill_group()
                case Record(kind, code, params):
                    self._record(slot, kind, code, params)
        if slot.child.state is not before:
            for callback in list(slot.on_change):
                callback(slot)
            self._on_change()

    def _record(self, slot: Slot, kind: str, code: str | None, params: Mapping[str, Any]) -> None:
        if slot.engine is None and kind in SILENT_FOR_WEB:
            return
        more = {"engine": slot.engine} if slot.engine else {}
        self._recorder.event(kind, code, {**params, **more})

    def _spawn(self, slot: Slot) -> None:
        try:
            if slot.engine is None:
                process = spawn(self._web_module, self._surroundings, role=WEB_ROLE, listen=self._listen)
            else:
                module = (*self._worker_module, "--engine", slot.engine)
                surroundings = self.fitted(slot.engine, self._surroundings)
                process = spawn(module, surroundings, role=worker_role(slot.engine))
        except OSError as error:
            log.error("%s could not be started: %s", slot.name, error)
            slot.child = lifecycle.said_fatal(slot.child, "engine_failed", {"reason": str(error)})
            self._loop.later(0.0, lambda: self._gone(slot, "exit 127", Death()))
            return
        slot.process = process
        if self.deaths is not None:
            self.deaths.born(process.pid, WEB if slot.engine is None else "worker")
        slot.owner = lease_owner(self._surroundings.instance, process.pid)
        assert process.link is not None
        slot.link = Connection(
            self._loop,
            process.link,
            lambda conn, method, params, reply: self._called(slot, conn, method, params, reply),
            lambda conn: self._link_closed(slot, process),
        )
        self._loop.watch(process.pidfd, READ, lambda _: self._ended(slot, process))
        self._record(slot, "worker_started", None, {"child": slot.name, "pid": process.pid})

    def _link_closed(self, slot: Slot, process: Process) -> None:
        def look() -> None:
            if slot.process is process:
                self.kill(slot, "link_lost", charge=True)

        if slot.process is process:
            self._loop.later(LINK_LOST_S, look)

    def _ended(self, slot: Slot, process: Process) -> None:
        self._loop.forget(process.pidfd)
        reason = process.reap()
        death = Death()
        if self.deaths is not None:
            death = self.deaths.ended(process.pid, reason, slot.child.killed)
        if slot.process is process:
            self._gone(slot, reason, death)

    def _gone(self, slot: Slot, reason: str, death: Death) -> None:
        link, slot.link, slot.process = slot.link, None, None
        if link is not None:
            link.close()
        if slot in self.retired:
            self.retired.remove(slot)
        if slot.engine is not None:
            self._return_jobs(slot, slot.owner, death.cause)
        for_lack = death.cause is not None and slot.child.busy and not self.foreign_ram()
        step = lifecycle.exited(
            slot.child, reason, self._loop.now(), self.config, killer=death.cause, peak=death.peak_bytes
        )
        self.apply(slot, step)
        if for_lack:
            self.on_oom(slot, "ram")
        self._on_change()

    def _return_jobs(self, slot: Slot, owner: str, killer: str | None) -> None:
        def returned(found: list[queue.Requeued]) -> None:
            if any(job.poison for job in found):
                slot.child = lifecycle.not_its_fault(slot.child, self._loop.now(), self.config)
            self._on_change()

        return_jobs(self._writer, self._recorder, self._clock, slot.child, owner, returned, killer)

    # -- what children say -------------------------------------------------------------------------

    def _called(
        self, slot: Slot, conn: Connection, method: str, params: dict[str, Any], reply: Answer | None
    ) -> None:
        now = self._loop.now()
        match method:
            case "hello":
                pass
            case "ready":
                footprint = _mapping(params.get("footprint"))
                capabilities = _mapping(params.get("capabilities"))
                rss, vram = _whole(footprint.get("rss_bytes")), _whole(footprint.get("vram_bytes"))
                self.apply(slot, lifecycle.said_ready(slot.child, now, capabilities, rss, vram))
            case "heartbeat":
                beat = Beat(
                    _whole(params.get("rss_bytes")),
                    _whole(params.get("vram_bytes")),
                    params.get("job"),
                    params.get("segment"),
                    params.get("progress_at"),
                )
                slot.child = lifecycle.said_heartbeat(slot.child, now, beat)
                if slot.child.ready_rss_bytes is None and slot.child.state is State.READY:
                    slot.child = replace(slot.child, ready_rss_bytes=beat.rss_bytes)
            case "oom":
                resource = str(params.get("resource", "ram"))
                self._recorder.event(
                    "oom_caught", "out_of_memory",
                    {"child": slot.name, "engine": slot.engine or WEB, "resource": resource,
                     "footprint": params.get("footprint"), "job": params.get("job")},
                    resource=resource if resource in ("ram", "vram") else None,
                )  # fmt: skip
                self.on_oom(slot, resource)
            case "drained":
                pass  # its end follows
            case "fatal":
                slot.child = lifecycle.said_fatal(
                    slot.child, str(params.get("code", "internal")), _mapping(params.get("params"))
                )
            case _:
                answer: Answer = reply if reply is not None else lambda value: None
                if slot.engine is not None or not self._methods(method, params, answer):
                    answer(MethodUnknown(f"unknown method {method}"))


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
