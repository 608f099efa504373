"""The memory guard's shell: reads, lets `daemon.policy` decide, does it, and puts it on record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from daemon import lifecycle, policy
from daemon.children import Children, Slot
from daemon.gpu_reader import GpuReader
from daemon.lifecycle import State
from daemon.loop import Loop
from daemon.policy import Act, Foreign, Judged, LevelChanged, PolicyState, Rung
from daemon.ram_reader import RamReader
from daemon.recorder import Recorder
from daemon.sample import Resource, Sample
from pipeline.codes import CosydError
from pipeline.profile import Config

log = logging.getLogger(__name__)
NAME_OTHERS_EVERY_S = 10.0
TRIM_TIMEOUT_S = 10.0


class Guard:
    """`tick` once a cadence. `sample`, `state` and `others` are what the rest of the supervisor looks at."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        children: Children,
        recorder: Recorder,
        ram: RamReader,
        gpu: GpuReader | None,
    ) -> None:
        self._loop, self.config = loop, config
        self._children, self._recorder, self._ram, self._gpu = children, recorder, ram, gpu
        self.sample = Sample()
        self.state = PolicyState()
        self.others: dict[Resource, list[tuple[str, int]]] = {}
        self._others_at = float("-inf")

    @property
    def cadence_s(self) -> float:
        """Quicker from LOW on."""
        guard = self.config.guard
        return guard.cadence_s if self.state.level is policy.Level.OK else guard.cadence_low_s

    def read(self) -> Sample:
        """One look at the machine; never waits."""
        own = self._children.own_processes()
        vram = None
        if self._gpu is not None:
            self._gpu.ask(any(p.vram_bytes for p in own))
            vram = self._gpu.reading
            if vram is not None and vram.by_pid is not None:
                held = dict(vram.by_pid)
                own = tuple(replace(p, vram_bytes=held.get(p.pid, p.vram_bytes)) for p in own)
        return Sample(self._ram.read(), vram, own)

    def tick(self) -> None:
        """Read, decide, act."""
        self.sample = self._recorder.sample = self.read()
        self.state, outputs = policy.step(self.state, self.sample, self._loop.now(), self.config)
        self._recorder.level = self.state.level.word
        if self.state.foreign and self._loop.now() - self._others_at >= NAME_OTHERS_EVERY_S:
            self._name_others()
        elif not self.state.foreign:
            self.others.clear()
        for output in outputs:
            match output:
                case LevelChanged():
                    self._recorder.event(
                        "level_changed", None,
                        {"resource": output.resource, "old": output.old.word, "new": output.new.word,
                         "free_bytes": output.free_bytes},
                        resource=output.resource,
                    )  # fmt: skip
                case Foreign():
                    self._tell_foreign(output)
                case Judged():
                    self._tell_result(output)
                case Act():
                    self._do(output)

    def foreign(self) -> Mapping[Resource, tuple[str, int]]:
        """The largest other program for each resource that others hold."""
        return {resource: found[0] for resource, found in self.others.items() if found}

    # -- naming others -----------------------------------------------------------------------------

    def _name_others(self) -> None:
        self._others_at = self._loop.now()
        ours = frozenset(slot.process.pid for slot in self._children.alive() if slot.process is not None)
        if "ram" in self.state.foreign:
            self.others["ram"] = self._ram.largest_others(ours)
        if "vram" in self.state.foreign and self.sample.vram is not None:
            held = [(pid, size) for pid, size in self.sample.vram.by_pid or () if pid not in ours]
            named = [(self._ram.name_of(pid), size) for pid, size in held]
            self.others["vram"] = sorted(named, key=lambda item: -item[1])[:3]

    def _tell_foreign(self, output: Foreign) -> None:
        self._name_others()
        name, size = self.foreign().get(output.resource, ("?", output.used_bytes - output.own_bytes))
        self._recorder.event(
            "foreign_pressure", "foreign_memory",
            {"resource": output.resource, "name": name, "bytes": size, "own_bytes": output.own_bytes,
             "used_bytes": output.used_bytes},
            resource=output.resource,
        )  # fmt: skip

    # -- acting ------------------------------------------------------------------------------------

    def _slots(self, act: Act) -> list[Slot]:
        found = (self._children.find(name, pid) for name, pid in zip(act.targets, act.pids, strict=True))
        return [slot for slot in found if slot is not None]

    def _do(self, act: Act) -> None:
        now, slots = self._loop.now(), self._slots(act)
        why = f"memory_{self.state.of(act.resource).level.word}"
        if not slots:
            self.state = policy.abandon(self.state, now)
            return
        if act.rung is Rung.TRIM:
            for slot in slots:
                if slot.link is not None:
                    slot.link.call("trim", {}, TRIM_TIMEOUT_S, lambda value: None)
        elif act.rung is Rung.UNLOAD:
            slot = slots[0]
            self._recorder.event(
                "unloaded", None,
                {"engine": slot.engine, "child": slot.name, "reason": why,
                 "rss_bytes": slot.child.beat.rss_bytes, "vram_bytes": slot.child.beat.vram_bytes},
                resource=act.resource, freed_bytes=self._bytes(slot, act.resource),
            )  # fmt: skip
            grace_s = self.config.deadlines.stop_grace_s * self.config.timeout_factor
            self._children.apply(slot, lifecycle.stop(slot.child, why, grace_s, now))
        elif act.rung is Rung.RECYCLE_WEB:
            self._children.recycle_web(act.deadline_s, why)
        elif act.rung is Rung.DRAIN:
            slot = slots[0]
            self._children.apply(slot, lifecycle.drain(slot.child, why, act.deadline_s, now))
        else:
            self._kill(act, slots[0], why, now)

    def _kill(self, act: Act, slot: Slot, why: str, now: float) -> None:
        fresh = self.read()
        if not policy.still_needed(self.state, act, fresh, now, self.config):
            log.info("the memory recovered just before %s would have been ended", slot.name)
            self.state = policy.abandon(self.state, now)
            return
        self._children.kill(slot, why)

    @staticmethod
    def _bytes(slot: Slot, resource: Resource) -> int | None:
        beat = slot.child.beat
        return beat.rss_bytes if resource == "ram" else beat.vram_bytes

    def _tell_result(self, output: Judged) -> None:
        if output.act.rung is not Rung.TRIM:
            return  # the other rungs are on record by what they do
        self._recorder.event(
            "trim_done" if output.helped else "trim_failed", None,
            {"resource": output.act.resource, "freed_bytes": output.freed_bytes,
             "targets": ", ".join(output.act.targets)},
            resource=output.act.resource, freed_bytes=output.freed_bytes,
        )  # fmt: skip

    # -- a person's wish ---------------------------------------------------------------------------

    def trim(self, reply: Callable[[Any], None]) -> None:
        """Ask all ready children to give back what they can; answers with the sum and one entry each."""
        targets = [s for s in self._children.slots() if s.link is not None and s.child.state is State.READY]
        results: dict[str, Any] = {}
        left = len(targets)

        def done() -> None:
            freed = sum(r["freed_bytes"] for r in results.values() if r.get("freed_bytes") is not None)
            self._recorder.event(
                "trim_done" if freed > 0 else "trim_failed", None,
                {"freed_bytes": freed, "reason": "asked", "targets": ", ".join(results)},
                resource="ram", freed_bytes=freed,
            )  # fmt: skip
            reply({"freed_bytes": freed, "children": results})

        def answered(name: str, value: Any) -> None:
            nonlocal left
            left -= 1
            results[name] = trim_result(value)
            if left == 0:
                done()

        if not targets:
            done()
        for slot in targets:
            assert slot.link is not None
            slot.link.call("trim", {}, TRIM_TIMEOUT_S, lambda value, name=slot.name: answered(name, value))  # type: ignore[misc]


def trim_result(value: Any) -> dict[str, Any]:
    """A child's answer with what it freed; an error keeps its code, and unknown stays unknown."""
    if isinstance(value, CosydError):
        return {"code": value.code, "freed_bytes": None}
    if not isinstance(value, dict):
        return {"freed_bytes": None}
    before, after = value.get("rss_before"), value.get("rss_after")
    known = isinstance(before, int) and isinstance(after, int)
    return {**value, "freed_bytes": max(0, before - after) if known else None}  # type: ignore[operator]


def web_fits(sample: Sample, config: Config, need_bytes: int) -> bool:
    """Whether the page may be started: it is always wanted, so only a start into CRITICAL is put off."""
    if sample.ram is None:
        return True
    return sample.ram.available_bytes >= need_bytes + config.guard.ram.critical_enter.bytes_of(
        sample.ram.total_bytes
    )
