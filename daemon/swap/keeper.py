"""The supervisor's hand on swap: the profile's swap after the start, a step in an emergency, three methods.

Plans are made by `daemon.swap.plan` from what the helper sees; the helper has the last word. One request is
under way at a time. What was done, or refused, is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from daemon.connection import Answer
from daemon.levels import Level
from daemon.loop import Loop
from daemon.recorder import Recorder
from daemon.sample import RamReading
from daemon.swap import plan as plans
from daemon.swap.client import ANSWER_S, CHANGE_S, STATUS, SwapClient, set_request
from daemon.swap.plan import Plan, SwapView, parse_view
from pipeline.codes import CosydError
from pipeline.profile import Config

AFTER_START_S = 20.0
"""The page first."""
LOOK_AGAIN_S = 60.0
"""For a helper that was not there: the installer may lay it after the service started."""
REFUSED_AGAIN_S = 3600.0
"""The profile's swap that was refused: the disk may have room by then."""
TRY_AGAIN_S = 65.0
"""Of an emergency step that was refused; the helper makes one change a minute."""
NEARLY_FULL = 0.10
"""So little of the swap left, and it is as good as full."""
LARGEST_BYTES = 1 << 50
QUIET = frozenset({"no_helper", "already_grown", "unknown"})
"""Refusals that need no event of an automatic act: nobody installed a helper, or it is all done."""
Planner = Callable[[SwapView], Plan]


def in_need(level: Level, ram: RamReading | None) -> bool:
    """Is this the emergency that swap is for: RAM at CRITICAL, and no swap left to take what is idle?"""
    if level is not Level.CRITICAL or ram is None:
        return False
    total, used = ram.swap_total_bytes, ram.swap_used_bytes
    return total is not None and used is not None and total - used <= total * NEARLY_FULL


class SwapKeeper:
    """`start` once, `tick` each round; `status`, `plan` and `apply` answer control.sock. Without `automatic`
    (a `try`, which is a guest on its machine) it does only what somebody asks for."""

    def __init__(
        self,
        loop: Loop,
        client: SwapClient,
        recorder: Recorder,
        config: Callable[[], Config],
        *,
        automatic: bool = True,
    ) -> None:
        self._automatic = automatic
        self._loop, self._client, self._recorder, self._config = loop, client, recorder, config
        self.busy = False
        self._step_at = float("-inf")
        self._told: set[str] = set()
        self._by_hand = False

    def start(self) -> None:
        """Have the profile's swap, in a moment; what is in the way now is looked at again."""
        if self._automatic:
            self._loop.later(AFTER_START_S, self._have_profile)

    def _have_profile(self) -> None:
        """Until it is there, or a person has said how much there shall be."""
        if self._by_hand:
            return
        if self.busy:
            self._loop.later(LOOK_AGAIN_S, self._have_profile)
        else:
            self._act(self._standing, "profile")

    def tick(self, level: Level, ram: RamReading | None) -> None:
        """Looks whether a step is needed. Cheap."""
        if not self._automatic or self.busy or not in_need(level, ram):
            return
        if self._loop.now() - self._step_at >= TRY_AGAIN_S:
            self._step_at = self._loop.now()
            self._act(lambda view: plans.emergency(view, self._config()), "emergency")

    def _standing(self, view: SwapView) -> Plan:
        return plans.standing(view, self._config())

    # -- doing -------------------------------------------------------------------------------------

    def _act(self, planner: Planner, why: str, reply: Answer | None = None) -> None:
        """Look, plan, do. `reply` gets what came of it (`_outcome`)."""
        if self.busy:
            if reply is not None:
                reply(outcome("refuse", "busy", {}, None))
            return
        self.busy = True

        def looked(answer: dict[str, Any]) -> None:
            view = parse_view(answer) if answer.get("ok") else None
            if view is None:
                self._done("refuse", why, refused(answer), None, reply)
                return
            plan = planner(view)
            if plan.action in ("none", "refuse"):
                self._done(plan.action, why, (plan.reason, plan.params), view, reply)
                return
            self._client.ask(
                set_request(plan.own_bytes), CHANGE_S, lambda made: self._made(plan, why, view, made, reply)
            )

        self._client.ask(STATUS, ANSWER_S, looked)

    def _made(
        self, plan: Plan, why: str, before: SwapView, answer: dict[str, Any], reply: Answer | None
    ) -> None:
        view = parse_view(answer) or before
        if not answer.get("ok"):
            self._done("refuse", why, refused(answer), view, reply)
            return
        self._done(plan.action, why, (None, {}), view, reply, before)

    def _done(
        self,
        action: str,
        why: str,
        reason: tuple[str | None, Mapping[str, Any]],
        view: SwapView | None,
        reply: Answer | None,
        before: SwapView | None = None,
    ) -> None:
        self.busy = False
        word, params = reason
        if action == "refuse" and word is not None:
            self._refused(word, params, asked=reply is not None)
        elif before is not None and view is not None:
            self._told.clear()
            self._recorder.event(
                "swap_grown" if action == "grow" else "swap_shrunk", None,
                {"total_bytes": view.total_bytes, "own_bytes": view.own_bytes,
                 "bytes": view.own_bytes - before.own_bytes, "reason": why},
                resource="ram",
            )  # fmt: skip
        if action == "refuse" and why == "profile":
            self._loop.later(LOOK_AGAIN_S if word == "no_helper" else REFUSED_AGAIN_S, self._have_profile)
        if reply is not None:
            self._by_hand = self._by_hand or action != "refuse"
            reply(outcome(action, word, params, view))

    def _refused(self, word: str, params: Mapping[str, Any], *, asked: bool) -> None:
        """On record; what cosyd tries by itself once, until something was changed."""
        if not asked and (word in QUIET or word in self._told):
            return
        self._told.add(word)
        self._recorder.event("swap_refused", None, {**params, "reason": f"swap_{word}"}, resource="ram")

    # -- methods -----------------------------------------------------------------------------------

    def status(self, params: dict[str, Any], reply: Answer) -> None:
        """`swap_status`: what there is."""
        self._client.ask(STATUS, ANSWER_S, lambda answer: reply(shown(answer, self._config())))

    def plan(self, params: dict[str, Any], reply: Answer) -> None:
        """`swap_plan{total_bytes?}`: what `swap_apply` would do."""
        planner = self._planner(params)

        def looked(answer: dict[str, Any]) -> None:
            view = parse_view(answer) if answer.get("ok") else None
            if view is None:
                reply(outcome("refuse", *refused(answer), None))
                return
            plan = planner(view)
            reply(outcome(plan.action, plan.reason, plan.params, view, plan.own_bytes))

        self._client.ask(STATUS, ANSWER_S, looked)

    def apply(self, params: dict[str, Any], reply: Answer) -> None:
        """`swap_apply{total_bytes?}`: do it."""
        self._act(self._planner(params), "asked", reply)

    def _planner(self, params: dict[str, Any]) -> Planner:
        total = params.get("total_bytes")
        if total is None:
            return self._standing
        if type(total) is not int or not 0 <= total <= LARGEST_BYTES:
            raise CosydError(
                "bad_value", field="total_bytes", reason="out_of_range", low=0, high=LARGEST_BYTES,
                value=str(total)[:40],
            )  # fmt: skip
        return lambda view: plans.resize(view, total)


def refused(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Reason and numbers of a refusal; the helper's words are taken only as what they should be."""
    reason, params = answer.get("reason"), answer.get("params")
    return (
        reason if isinstance(reason, str) and reason.isidentifier() else "helper_failed",
        params if isinstance(params, dict) else {},
    )


def shown(answer: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The answer of `swap_status`."""
    view = parse_view(answer) if answer.get("ok") else None
    if view is None:
        reason, params = refused(answer)
        return {"helper": False, "reason": reason, "params": dict(params)}
    return {"helper": True, **numbers(view), "wanted_bytes": plans.wanted_bytes(config, view.ram_total_bytes)}


def numbers(view: SwapView) -> dict[str, Any]:
    """What the helper sees, for JSON."""
    return {
        "total_bytes": view.total_bytes,
        "own_bytes": view.own_bytes,
        "own_used_bytes": view.own_used_bytes,
        "inactive_bytes": view.inactive_bytes,
        "others": [
            {"kind": o.kind, "bytes": o.bytes, "used_bytes": o.used_bytes} for o in view.others
        ],
        "max_bytes": view.max_bytes,
        "disk_free_bytes": view.disk_free_bytes,
        "keep_free_bytes": view.keep_free_bytes,
        "filesystem": view.filesystem,
        "obstacle": view.obstacle,
    }  # fmt: skip


def outcome(
    action: str,
    reason: str | None,
    params: Mapping[str, Any],
    view: SwapView | None,
    target: int | None = None,
) -> dict[str, Any]:
    """The answer of `swap_plan` (with `target_bytes`) and `swap_apply`."""
    found: dict[str, Any] = {"action": action, "reason": reason, "params": dict(params)}
    if view is not None:
        found |= {"total_bytes": view.total_bytes, "own_bytes": view.own_bytes}
        if target is not None:
            found["target_bytes"] = target + view.others_bytes
    return found
