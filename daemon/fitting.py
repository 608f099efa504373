"""How each worker is fitted to the machine: its card by UUID, and as lean as its past asks for.

`leaner` decides the step; here it is remembered for each engine, put on record, and written as a
configuration of the engine's own (`run/effective-ENGINE.json`), which its next process reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from daemon import leaner, lifecycle
from daemon.backoff import Budget
from daemon.children import Children, Slot
from daemon.configuration import write_effective_to
from daemon.leaner import Leanness
from daemon.loop import Loop
from daemon.recorder import Recorder
from daemon.spawn import Surroundings
from pipeline.paths import StatePaths
from pipeline.profile import Config

log = logging.getLogger(__name__)


class Fitting:
    """`card` tells the UUID of the card in use, "" when it is not known. Hears of out-of-memory from
    `children`, and fits each worker that they start."""

    def __init__(
        self, loop: Loop, config: Config, paths: StatePaths, recorder: Recorder, children: Children,
        card: Callable[[], str],
    ) -> None:  # fmt: skip
        self._loop, self.config, self._paths, self._recorder = loop, config, paths, recorder
        self._children, self._card = children, card
        self._lean: dict[str, Leanness] = {}
        children.fitted = self.surroundings
        children.on_oom = lambda slot, resource: self.ran_out(slot, resource)

    def step_of(self, engine: str) -> int:
        """0 is full quality."""
        return self._lean.get(engine, Leanness()).step

    def surroundings(self, engine: str, plain: Surroundings) -> Surroundings:
        """What a worker that starts now is given."""
        config, step = plain.config, self.step_of(engine)
        if config.gpu == "auto" and (uuid := self._card()):
            config = replace(config, gpu=uuid)
        if step == 0:
            return replace(plain, config=config)
        path = self._paths.effective_config.with_name(f"effective-{engine}.json")
        try:
            write_effective_to(path, leaner.lean_config(self.config, step))
        except OSError as error:
            log.error("%s starts at full quality: %s", engine, error)
            return replace(plain, config=config)
        return replace(plain, config=config, effective_config=path)

    def ran_out(self, slot: Slot, resource: str) -> None:
        """A worker caught that memory ran out, or the kernel ended it for that while it worked. What the
        ladder ends is not counted here: leaner would not cure what others take, nor a leak, and FAILED would
        stay when the pressure has long gone."""
        engine = slot.engine
        if engine is None:
            return
        old = self._lean.get(engine, Leanness())
        new = leaner.ran_out(old, self._loop.now(), self.config.lean)
        if new.exhausted and not slot.child.alive:
            new = replace(new, step=leaner.SMALLER)  # the kernel may have been driven by others: no FAILED
        self._lean[engine] = new
        if new.step == old.step:
            return
        told = {"engine": engine, "step": new.step, "resource": resource}
        self._recorder.event("degraded", "out_of_memory", told)
        if new.exhausted:
            # Its next start would be like the last ones: FAILED, and the built-in voices stand in.
            now, budget = self._loop.now(), self.config.restart.budget
            failing = lifecycle.said_fatal(
                slot.child, "out_of_memory", {"engine": engine, "resource": resource}
            )
            slot.child = replace(failing, budget=Budget((now,) * budget))
            self._children.kill(slot, "out_of_memory", charge=True)
        else:
            self._restart(slot, "degraded")

    def look(self, calm: bool) -> None:
        """Once a tick. `calm`: memory is well and nothing is being spoken."""
        for engine, old in list(self._lean.items()):
            new = leaner.may_restore(old, self._loop.now(), calm, self.config.lean)
            if new == old:
                continue
            self._lean[engine] = new
            if new.step < old.step:
                self._recorder.event("restored", None, {"engine": engine, "step": new.step})
                self._restart(self._children.worker(engine), "restored")

    def forgive(self, engine: str) -> None:
        """A person asked for a restart: all of it again."""
        self._lean.pop(engine, None)

    def _restart(self, slot: Slot, reason: str) -> None:
        """So that it reads its new configuration: after its piece, if it runs at all."""
        if slot.child.alive:
            patience_s = lifecycle.stuck_after_s(self.config)
            step = lifecycle.drain(slot.child, reason, patience_s, self._loop.now(), again=True)
            self._children.apply(slot, step)
