"""Asking children to give memory back: a person's wish, and one of the guard's own. Results go on record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daemon.children import Slot
from daemon.recorder import Recorder
from daemon.sample import Resource
from pipeline.codes import CosydError

TRIM_TIMEOUT_S = 10.0


def trim_result(value: Any, resource: Resource = "ram") -> dict[str, Any]:
    """A child's answer with what it freed; an error keeps its code, and unknown stays unknown."""
    if isinstance(value, CosydError):
        return {"code": value.code, "freed_bytes": None}
    if not isinstance(value, dict):
        return {"freed_bytes": None}
    name = "rss" if resource == "ram" else "vram"
    before, after = value.get(f"{name}_before"), value.get(f"{name}_after")
    known = isinstance(before, int) and isinstance(after, int)
    return {**value, "freed_bytes": max(0, before - after) if known else None}  # type: ignore[operator]


def ask(
    slots: Sequence[Slot],
    recorder: Recorder,
    reason: str,
    reply: Callable[[Any], None] = lambda value: None,
    resource: Resource = "ram",
) -> None:
    """Ask `slots`, each by its link; `reply` gets the sum and one entry each when all have answered."""
    results: dict[str, Any] = {}
    targets = [slot for slot in slots if slot.link is not None]
    left = len(targets)

    def done() -> None:
        freed = sum(r["freed_bytes"] for r in results.values() if r.get("freed_bytes") is not None)
        recorder.event(
            "trim_done" if freed > 0 else "trim_failed", None,
            {"freed_bytes": freed, "reason": reason, "targets": ", ".join(results)},
            resource=resource, freed_bytes=freed,
        )  # fmt: skip
        reply({"freed_bytes": freed, "children": results})

    def answered(name: str, value: Any) -> None:
        nonlocal left
        left -= 1
        results[name] = trim_result(value, resource)
        if left == 0:
            done()

    if not targets:
        done()
    for slot in targets:
        assert slot.link is not None
        slot.link.call("trim", {}, TRIM_TIMEOUT_S, lambda value, name=slot.name: answered(name, value))  # type: ignore[misc]
