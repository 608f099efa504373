"""How much an engine needs, learned from what it held: when loaded, and at the height of its jobs. Pure.

Admission asks for what a start will soon hold, not for what is there right after loading. One job of the last
sixteen may have been an exception; the second largest counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemon.admission import Need

JOBS = 16
MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. `job` is the one in hand with its height so far; `heights` are those of finished jobs."""

    loaded: tuple[int | None, int | None] = (None, None)
    job: str | None = None
    height: tuple[int, int] = (0, 0)
    heights: tuple[tuple[int, int], ...] = ()


def loaded(state: Footprint, rss_bytes: int | None, vram_bytes: int | None) -> Footprint:
    """It became ready with this. A start at another size (leaner, other weights) makes the old jobs' heights
    worthless: they are kept only while the loaded size is about the same."""
    before, now = state.loaded, (rss_bytes, vram_bytes)
    same = all(
        a is None or b is None or abs(a - b) <= 0.2 * max(a, b) for a, b in zip(before, now, strict=True)
    )
    return Footprint(now, heights=state.heights if same else ())


def beat(state: Footprint, job: str | None, rss_bytes: int | None, vram_bytes: int | None) -> Footprint:
    """A heartbeat. Unknown sizes add nothing."""
    if job != state.job:
        heights = state.heights
        if state.job is not None and any(state.height):
            heights = (*heights, state.height)[-JOBS:]
        state = replace(state, job=job, height=(0, 0), heights=heights)
    if job is None:
        return state
    height = (max(state.height[0], rss_bytes or 0), max(state.height[1], vram_bytes or 0))
    return state if height == state.height else replace(state, height=height)


def need(state: Footprint) -> Need | None:
    """What a start wants; None before it was ever seen ready."""
    rss, vram = state.loaded
    if rss is None and vram is None:
        return None
    return Need(
        _with_margin(max(rss or 0, _second(state, 0))) if rss is not None else None,
        _with_margin(max(vram or 0, _second(state, 1))) or None,
    )


def _second(state: Footprint, index: int) -> int:
    """The second largest height, the largest when there is only one."""
    found = sorted(height[index] for height in (*state.heights, state.height) if height[index])
    return found[-2] if len(found) > 1 else found[0] if found else 0


def _with_margin(size: int) -> int:
    return round(size * MARGIN)


@dataclass(frozen=True, slots=True)
class GivingBack:
    """A worker ended that held VRAM: the driver gives it back a moment later (llama-swap 97)."""

    free_before: int
    held: int
    until: float


SHARE_BACK = 0.75
BACK_S = 5.0


def giving_back(free_bytes: int | None, held_bytes: int | None, now: float) -> GivingBack | None:
    """What to wait for after the end of a worker; None when nothing is known to come."""
    if free_bytes is None or not held_bytes:
        return None
    return GivingBack(free_bytes, held_bytes, now + BACK_S)


def is_back(wait: GivingBack | None, free_bytes: int | None, now: float) -> bool:
    """Whether a start may go on: three quarters are back, or five seconds have passed (somebody else may
    have taken it), or it cannot be read."""
    if wait is None or free_bytes is None or now >= wait.until:
        return True
    return free_bytes - wait.free_before >= SHARE_BACK * wait.held
