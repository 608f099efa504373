"""The memory guard's shell: reads, lets `daemon.decide` decide, does it, and puts it on record."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon import admission, decide, gpu_states, guard_trim, lifecycle, policy, trace
from daemon.admission import Need, Verdict
from daemon.children import Children, Slot
from daemon.decide import ConditionChanged, Mind
from daemon.gpu_reader import GpuReader, trusted
from daemon.lifecycle import State
from daemon.loop import Loop
from daemon.policy import Act, Foreign, Judged, LevelChanged, PolicyState, Rung
from daemon.ram_reader import RamReader
from daemon.recorder import Recorder
from daemon.renewal import Predicted, Renew, Soothe
from daemon.replay import numbers
from daemon.sample import Resource, Sample
from pipeline.codes import CosydError
from pipeline.planning.environment import TORCH_ENGINES
from pipeline.profile import Config

log = logging.getLogger(__name__)
NAME_OTHERS_EVERY_S = 10.0
BARRED_RETRY_S = 60.0
WEB_RECYCLE_S = 60.0


class Guard:
    """`tick` once a cadence. `sample`, `state` and `others` are what the rest of the supervisor looks at.
    `work` tells how many jobs wait or run."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        children: Children,
        recorder: Recorder,
        ram: RamReader,
        gpu: GpuReader | None,
        work: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._loop, self.config = loop, config
        self._children, self._recorder, self._ram, self._gpu = children, recorder, ram, gpu
        self._work = work
        self.trace_file: Path | None = None
        self.sample = Sample()
        self.mind = Mind()
        self.others: dict[Resource, list[tuple[str, int]]] = {}
        self._others_at = float("-inf")
        self._trace: deque[str] = deque(maxlen=config.guard.trace_samples)

    @property
    def state(self) -> PolicyState:
        """What the ladder remembers."""
        return self.mind.policy

    @property
    def cadence_s(self) -> float:
        """Quicker from LOW on."""
        guard = self.config.guard
        return guard.cadence_s if self.state.level is policy.Level.OK else guard.cadence_low_s

    @property
    def gpu_state(self) -> str:
        """A word of `gpu_states`: what is wrong with the card, or how it works."""
        if self._gpu is None:
            return gpu_states.NONE
        return self._gpu.state if self._gpu.state != gpu_states.OK else self.mind.health.word

    def read(self) -> Sample:
        """One look at the machine; never waits."""
        now, own = self._loop.now(), self._children.own_processes()
        since = {
            slot.process.pid: slot.child.since
            for slot in self._children.alive()
            if slot.process is not None and slot.child.state is State.READY
        }
        own = tuple(replace(p, age_s=now - since[p.pid]) if p.pid in since else p for p in own)
        vram = None
        if self._gpu is not None:
            calm = self.state.level is policy.Level.OK and all(p.idle and p.ready for p in own)
            self._gpu.ask(any(p.vram_bytes or self._uses_card(p.name) for p in own), calm)
            vram = trusted(self._gpu.reading, {p.pid for p in own if p.vram_bytes})
            held = dict(vram.by_pid or ()) if vram is not None else {}
            waits = self._gpu.state == gpu_states.MISMATCH
            own = tuple(
                replace(
                    p, vram_bytes=held.get(p.pid, p.vram_bytes),
                    keep=waits and bool(p.vram_bytes or self._uses_card(p.name)),
                )
                for p in own
            )  # fmt: skip
        return Sample(self._ram.read(), vram, own, self._work())

    def _uses_card(self, name: str) -> bool:
        return self.config.gpu != "none" and name.removeprefix("worker:") in TORCH_ENGINES

    def tick(self) -> None:
        """Read, decide, act."""
        now = self._loop.now()
        self.sample = self._recorder.sample = self.read()
        self._trace.append(trace.encode(self.sample, now))
        self.mind, decisions = decide.step(self.mind, self.sample, now, self.config)
        self._recorder.level = self.state.level.word
        if self.state.foreign and now - self._others_at >= NAME_OTHERS_EVERY_S:
            self._name_others()
        elif not self.state.foreign:
            self.others.clear()
        for decision in decisions:
            match decision:
                case LevelChanged():
                    self._tell_level(decision)
                case Foreign():
                    self._tell_foreign(decision)
                case Judged():
                    self._tell_result(decision)
                case Act():
                    self._do(decision)
                case Predicted():
                    self._tell_creep(decision)
                case Soothe(name, pid, resource):
                    slot = self._children.find(name, pid)
                    guard_trim.ask([slot] if slot else [], self._recorder, "creep", resource=resource)
                case Renew():
                    self._renew(decision)
                case ConditionChanged(old, new):
                    self._recorder.event(
                        "gpu_state_changed", None, {"state": new, "old": old}, resource="vram"
                    )

    def write_trace(self) -> str:
        """The last looks into `trace_file`, for a bug report; its path. Called in the writer's thread: looks
        that come meanwhile may or may not be in it. Raises CosydError(storage_full)."""
        assert self.trace_file is not None
        try:
            self.trace_file.write_text(
                "\n".join([trace.header(self.config), *list(self._trace), ""]), "utf-8"
            )
        except OSError as error:
            raise CosydError("storage_full", reason="unreachable", path=self.trace_file.name) from error
        return str(self.trace_file)

    # -- admission ---------------------------------------------------------------------------------

    def admit(self, engine: str, need: Need) -> Verdict:
        """Whether a worker may be started now."""
        if self._gpu is not None and self._uses_card(engine) and gpu_states.bars_start(self._gpu.state):
            params = {"engine": engine, "reason": self._gpu.state}
            return Verdict(False, "engine_failed", params, BARRED_RETRY_S)
        return admission.admit(need, self.sample, self.state, self.config, self.foreign())

    def gpu_changed(self, old: str, new: str) -> None:
        """The card's state is another: on record, with what follows for its workers."""
        self._recorder.event("gpu_state_changed", None, {"state": new, "old": old}, resource="vram")
        for slot in list(self._children.workers.values()):
            if not self._uses_card(slot.name):
                continue
            if new in gpu_states.ENDS_WORKER and slot.child.alive:
                self._children.kill(slot, new)
            elif new == gpu_states.OK and slot.child.state in (State.FAILED, State.BACKOFF):
                # What failed for the lack of a card gets a new budget with it.
                slot.child = lifecycle.forgive(slot.child, self._loop.now())

    # -- naming others -----------------------------------------------------------------------------

    def foreign(self) -> Mapping[Resource, tuple[str, int]]:
        """The largest other program for each resource that others hold."""
        return {resource: found[0] for resource, found in self.others.items() if found}

    def _name_others(self) -> None:
        self._others_at = self._loop.now()
        ours = frozenset(slot.process.pid for slot in self._children.alive() if slot.process is not None)
        if "ram" in self.state.foreign:
            self.others["ram"] = self._ram.largest_others(ours)
        if "vram" in self.state.foreign and self.sample.vram is not None:
            sizes: dict[str, int] = {}
            for pid, size in self.sample.vram.by_pid or ():
                if pid not in ours:
                    name = self._ram.name_of(pid)
                    sizes[name] = sizes.get(name, 0) + size
            self.others["vram"] = sorted(sizes.items(), key=lambda item: -item[1])[:3]

    # -- telling -----------------------------------------------------------------------------------

    def _tell_level(self, decision: LevelChanged) -> None:
        found = numbers(self.sample, decision.resource, self.config)
        self._recorder.event(
            "level_changed", None,
            {"resource": decision.resource, "old": decision.old.word, "new": decision.new.word,
             "free_bytes": decision.free_bytes, "total_bytes": found["total"], "own_bytes": found["own"],
             "low_bytes": found["low"], "critical_bytes": found["critical"]},
            resource=decision.resource,
        )  # fmt: skip

    def _tell_foreign(self, decision: Foreign) -> None:
        self._name_others()
        name, size = self.foreign().get(decision.resource, ("?", decision.used_bytes - decision.own_bytes))
        self._recorder.event(
            "foreign_pressure", "foreign_memory",
            {"resource": decision.resource, "name": name, "bytes": size, "own_bytes": decision.own_bytes,
             "used_bytes": decision.used_bytes},
            resource=decision.resource,
        )  # fmt: skip

    def _tell_result(self, decision: Judged) -> None:
        if decision.act.rung is not Rung.TRIM:
            return  # the other rungs are on record by what they do
        self._recorder.event(
            "trim_done" if decision.helped else "trim_failed", None,
            {"resource": decision.act.resource, "freed_bytes": decision.freed_bytes,
             "targets": ", ".join(decision.act.targets)},
            resource=decision.act.resource, freed_bytes=decision.freed_bytes,
        )  # fmt: skip

    def _tell_creep(self, decision: Predicted) -> None:
        self._recorder.event(
            "creep_predicted", None,
            {"child": decision.name, "resource": decision.resource, "eta_s": round(decision.eta_s),
             "hourly_bytes": round(decision.bytes_a_second * 3600), "bytes": decision.size_bytes,
             "free_bytes": decision.free_bytes, "low_bytes": decision.line_bytes},
            resource=decision.resource,
        )  # fmt: skip

    # -- acting ------------------------------------------------------------------------------------

    def _do(self, act: Act) -> None:
        now = self._loop.now()
        found = (self._children.find(name, pid) for name, pid in zip(act.targets, act.pids, strict=True))
        slots = [slot for slot in found if slot is not None]
        why = f"memory_{self.state.of(act.resource).level.word}"
        if not slots:
            self._abandon(now)
        elif act.rung is Rung.TRIM:
            for slot in slots:
                if slot.link is not None:
                    slot.link.call("trim", {}, guard_trim.TRIM_TIMEOUT_S, lambda value: None)
        elif act.rung is Rung.UNLOAD:
            self._unload(slots[0], act.resource, why, now)
        elif act.rung is Rung.RECYCLE_WEB:
            self._children.recycle_web(act.deadline_s, why)
        elif act.rung is Rung.DRAIN:
            self._children.apply(slots[0], lifecycle.drain(slots[0].child, why, act.deadline_s, now))
        else:
            self._kill(act, slots[0], why, now)

    def _unload(self, slot: Slot, resource: Resource, why: str, now: float) -> None:
        beat = slot.child.beat
        self._recorder.event(
            "unloaded", None,
            {"engine": slot.engine, "child": slot.name, "reason": why, "rss_bytes": beat.rss_bytes,
             "vram_bytes": beat.vram_bytes},
            resource=resource, freed_bytes=beat.rss_bytes if resource == "ram" else beat.vram_bytes,
        )  # fmt: skip
        grace_s = self.config.deadlines.stop_grace_s * self.config.timeout_factor
        self._children.apply(slot, lifecycle.stop(slot.child, why, grace_s, now))

    def _kill(self, act: Act, slot: Slot, why: str, now: float) -> None:
        fresh = self.read()
        if not policy.still_needed(self.state, act, fresh, now, self.config):
            log.info("the memory recovered just before %s would have been ended", slot.name)
            self._abandon(now)
            return
        self._children.kill(slot, why)

    def _abandon(self, now: float) -> None:
        self.mind = replace(self.mind, policy=policy.abandon(self.state, now))

    def _renew(self, wish: Renew) -> None:
        """A planned restart: the worker comes back at once, and a new page takes over on the same sockets."""
        slot = self._children.find(wish.name, wish.pid)
        if slot is None:
            return
        if slot.engine is None:
            self._children.recycle_web(WEB_RECYCLE_S, wish.reason)
            return
        patience_s = lifecycle.stuck_after_s(self.config)
        step = lifecycle.drain(slot.child, wish.reason, patience_s, self._loop.now(), again=True)
        self._children.apply(slot, step)

    # -- a person's wish ---------------------------------------------------------------------------

    def trim(self, reply: Callable[[Any], None]) -> None:
        """Ask all ready children to give back what they can; answers with the sum and one entry each."""
        ready = [slot for slot in self._children.slots() if slot.child.state is State.READY]
        guard_trim.ask(ready, self._recorder, "asked", reply)


def web_fits(sample: Sample, config: Config, need_bytes: int) -> bool:
    """Whether the page may be started: it is always wanted, so only a start into CRITICAL is put off."""
    if sample.ram is None:
        return True
    return sample.ram.available_bytes >= need_bytes + config.guard.ram.critical_enter.bytes_of(
        sample.ram.total_bytes
    )
