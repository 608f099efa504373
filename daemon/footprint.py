"""How much an engine needs, learned from what it held: when loaded, and what each job took on top. Pure.

Admission asks for what a start will soon hold, not for what is there right after loading. What counts of a
job is what it added to the size before it: an engine that leaks would else need more with each job, in the
end more than the machine has, and never be started again. One job of the last sixteen may have been an
exception; the second largest counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from daemon.admission import Need

JOBS = 16
MARGIN = 1.1

Sizes = tuple[int | None, int | None]
"""RSS and VRAM in bytes; None is unknown."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """`idle` is the last size without a job, `job` the one in hand, which has added `added` so far; `jobs`
    are what finished ones added."""

    loaded: Sizes = (None, None)
    idle: Sizes = (None, None)
    job: str | None = None
    added: tuple[int, int] = (0, 0)
    jobs: tuple[tuple[int, int], ...] = ()


def loaded(state: Footprint, rss_bytes: int | None, vram_bytes: int | None) -> Footprint:
    """It became ready with this. A start at another size (leaner, other weights) makes what jobs added before
    worthless: it is kept only while the loaded size is about the same."""
    before, now = state.loaded, (rss_bytes, vram_bytes)
    same = all(
        a is None or b is None or abs(a - b) <= 0.2 * max(a, b) for a, b in zip(before, now, strict=True)
    )
    return Footprint(now, now, jobs=state.jobs if same else ())


def beat(state: Footprint, job: str | None, rss_bytes: int | None, vram_bytes: int | None) -> Footprint:
    """A heartbeat. Unknown sizes add nothing."""
    sizes = (rss_bytes, vram_bytes)
    if job != state.job:
        jobs = state.jobs
        if state.job is not None and any(state.added):
            jobs = (*jobs, state.added)[-JOBS:]
        state = replace(state, job=job, added=(0, 0), jobs=jobs)
    if job is None:
        return state if sizes == state.idle else replace(state, idle=sizes)
    more = tuple(
        max(old, size - before) if size is not None and before is not None else old
        for old, size, before in zip(state.added, sizes, state.idle, strict=True)
    )
    return state if more == state.added else replace(state, added=(more[0], more[1]))


def remembered(peaks: Iterable[Sizes]) -> Footprint:
    """From the peaks of jobs of an earlier run. Peaks of a process that grew say little about a new one: the
    least of the last ones stands for its loaded size until it was seen."""
    known = [found for found in peaks if found[0]][:JOBS]
    rss = min((found[0] for found in known if found[0]), default=None)
    vram = min((found[1] for found in known if found[1]), default=None)
    return Footprint((rss, vram))


def need(state: Footprint) -> Need | None:
    """What a start wants; None before it was ever seen ready."""
    rss, vram = state.loaded
    if rss is None and vram is None:
        return None
    return Need(
        _with_margin(rss + _second(state, 0)) if rss is not None else None,
        _with_margin((vram or 0) + _second(state, 1)) or None,
    )


def _second(state: Footprint, index: int) -> int:
    """The second most that a job added, the most when there is only one."""
    found = sorted(added[index] for added in (*state.jobs, state.added) if added[index])
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
