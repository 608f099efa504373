"""When a worker is wanted (CONTRACTS 4). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """What is known of the wish for one engine. `queued` and `running` are None when the read failed.

    `active_at` (monotonic) is when it last had work or was asked for; None: never.
    """

    queued: int | None = 0
    running: int | None = 0
    active_at: float | None = None
    pinned_until: float = 0.0


def is_wanted(demand: Demand, *, keep_alive_s: float, now: float, warm: bool = False) -> bool | None:
    """True to have it, False to let it go, None when the queue could not be read: then nothing changes.
    `warm`: it is loaded ahead of work at this time of day (`keep_warm`)."""
    if warm or now < demand.pinned_until:
        return True
    if demand.active_at is not None and now - demand.active_at < keep_alive_s:
        return True
    if demand.queued is None or demand.running is None:
        return None
    return demand.queued + demand.running > 0
