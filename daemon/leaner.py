"""An engine that ran out of memory comes back leaner, and has all of it back later. Pure.

Step 1 cuts texts into shorter pieces, one at a time; step 2 takes int8 weights too; when that is not enough
either, the engine has FAILED and the built-in voices stand in. Each return to more is a trial: one that fails
makes the wait before the next twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.profile import Config
from pipeline.profile.config import Lean

SHORTEST_S = 8.0
SHORTER, SMALLER, EXHAUSTED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Leanness:
    """`step` 0 is full quality. `wait_s` is how long this step is kept, None: the configured time."""

    step: int = 0
    since: float = 0.0
    ooms: tuple[float, ...] = ()
    wait_s: float | None = None
    trial: bool = False

    @property
    def exhausted(self) -> bool:
        """Nothing leaner is left."""
        return self.step >= EXHAUSTED


def ran_out(state: Leanness, now: float, rules: Lean) -> Leanness:
    """Memory ran out once more: `rules.after` times within the window are a step down; on trial one is."""
    ooms = (*(at for at in state.ooms if now - at < rules.window_s), now)
    if len(ooms) < rules.after and not state.trial:
        return replace(state, ooms=ooms)
    wait_s = state.wait_s if state.wait_s is not None else rules.restore_s
    if state.trial:
        wait_s = min(rules.restore_max_s, 2 * wait_s)
    return Leanness(min(EXHAUSTED, state.step + 1), now, (), wait_s)


def may_restore(state: Leanness, now: float, calm: bool, rules: Lean) -> Leanness:
    """One step back to more when the wait is over and memory is `calm` (level OK, nothing running). A trial
    that went well for as long as its wait is none any more."""
    wait_s = state.wait_s if state.wait_s is not None else rules.restore_s
    if now - state.since < wait_s:
        return state
    if state.step == 0:
        return Leanness() if state.trial else state
    if state.exhausted or not calm:
        return state  # a person's restart forgives what is exhausted
    return Leanness(state.step - 1, now, (), wait_s, trial=True)


def lean_config(config: Config, step: int) -> Config:
    """The configuration that a worker gets at this step."""
    if step <= 0:
        return config
    shorter = max(SHORTEST_S, config.longest_segment_s / 2)
    leaner = replace(config, longest_segment_s=min(config.longest_segment_s, shorter), batch_segments=1)
    return leaner if step == SHORTER else replace(leaner, weights="int8")
