"""How much swap of our own there should be (DESIGN 5 and 6). Pure: from what the helper says to a plan.

`standing` is the profile's swap, `emergency` one growth step beyond it, `resize` a person's wish. Nothing
here shrinks by itself. Swap that others made is counted and never touched; the disk keeps what root's limits
say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.profile import Config

MIB = 1024**2
STEP_BYTES = 2048 * MIB
"""Of an emergency."""
SMALLEST_BYTES = 64 * MIB
"""Less than this is not worth a file."""
LOW_SHARE, LOW_BYTES = 0.10, 384 * MIB
"""What RAM must have left after it took pages back: the distance of LOW."""


@dataclass(frozen=True, slots=True)
class Other:
    """Swap of somebody else. `kind` is `zram`, `partition` or `file`."""

    kind: str
    bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class SwapView:
    """What the helper sees. `inactive_bytes` are files of ours from before a reboot. `obstacle` says why no
    swap can be added on this machine at all."""

    own_bytes: int
    own_used_bytes: int
    inactive_bytes: int
    others: tuple[Other, ...]
    max_bytes: int
    keep_free_bytes: int
    disk_free_bytes: int
    filesystem: str
    ram_total_bytes: int | None
    ram_available_bytes: int | None
    obstacle: str | None = None

    @property
    def others_bytes(self) -> int:
        return sum(other.bytes for other in self.others)

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.others_bytes


Action = Literal["none", "grow", "shrink", "refuse"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask the helper for: `own_bytes` of our own. With `refuse`, why not."""

    action: Action
    own_bytes: int
    reason: str | None = None
    params: Mapping[str, int | str] = field(default_factory=dict)


def parse_view(answer: Mapping[str, Any]) -> SwapView | None:
    """From the helper's answer; None when it is a refusal without a look."""
    try:
        values = {name: answer[name] for name in SwapView.__dataclass_fields__ if name != "others"}
        return SwapView(**values, others=tuple(Other(**other) for other in answer["others"]))
    except (KeyError, TypeError):
        return None


def wanted_bytes(config: Config, ram_total_bytes: int | None) -> int:
    """The profile's swap in all. Unknown RAM: none."""
    if ram_total_bytes is None or ram_total_bytes >= config.swap_below_ram_bytes:
        return 0
    return config.swap_bytes


def standing(view: SwapView, config: Config) -> Plan:
    """The profile's swap, with what is there."""
    return _grow_to(view, wanted_bytes(config, view.ram_total_bytes) - view.others_bytes)


def emergency(view: SwapView, config: Config) -> Plan:
    """One step beyond the profile's swap, once."""
    if view.ram_total_bytes is None:
        return Plan("refuse", view.own_bytes, "unknown")
    base = max(0, wanted_bytes(config, view.ram_total_bytes) - view.others_bytes)
    limit = min(base + STEP_BYTES, view.max_bytes)
    have = view.own_bytes + view.inactive_bytes
    plan = _grow_to(view, min(have + STEP_BYTES, limit))
    if plan.action == "none":
        return Plan("refuse", view.own_bytes, "already_grown", {"own_bytes": view.own_bytes})
    return plan


def resize(view: SwapView, total_bytes: int) -> Plan:
    """A person's wish: so much in all. What others made stays."""
    target = max(0, total_bytes - view.others_bytes)
    if target > view.max_bytes:
        return Plan(
            "refuse", view.own_bytes, "above_ceiling", {"asked_bytes": target, "max_bytes": view.max_bytes}
        )
    if target >= view.own_bytes:
        return _grow_to(view, target, least=MIB)
    if view.own_used_bytes:
        total, available = view.ram_total_bytes, view.ram_available_bytes
        if total is None or available is None:
            return Plan("refuse", view.own_bytes, "unknown")
        if available - view.own_used_bytes < max(int(total * LOW_SHARE), LOW_BYTES):
            params = {"used_bytes": view.own_used_bytes, "available_bytes": available}
            return Plan("refuse", view.own_bytes, "ram_short", params)
    return Plan("shrink", target)


def _grow_to(view: SwapView, target: int, least: int = SMALLEST_BYTES) -> Plan:
    """At least `target` of our own: within the ceiling, and as much of it as leaves the disk its room."""
    target = min(target, view.max_bytes)
    target -= target % MIB
    if target - view.own_bytes < least:
        return Plan("none", view.own_bytes)
    if view.obstacle is not None:
        return Plan("refuse", view.own_bytes, view.obstacle, {"filesystem": view.filesystem})
    have = view.own_bytes + view.inactive_bytes
    room = max(0, view.disk_free_bytes - view.keep_free_bytes)
    if target - have > room:
        fits = have + room - (have + room) % MIB
        if fits - view.own_bytes < least:
            params = {
                "need_bytes": target - have,
                "free_bytes": view.disk_free_bytes,
                "keep_bytes": view.keep_free_bytes,
            }
            return Plan("refuse", view.own_bytes, "disk_full", params)
        target = fits
    return Plan("grow", target)
