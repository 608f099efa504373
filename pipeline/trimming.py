"""Wishes for memory to be given back, and when each kind of it can be (rung TRIM of the ladder, DESIGN 5).

The engine is called from one thread only, and not in the middle of a segment: there only what Python and libc
hold is given back, and the engine's share follows between segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from pipeline.child import HeartbeatState, clean_up
from pipeline.codes import CosydError

Report = dict[str, int | None]
"""`rss_before`, `rss_after`, `vram_before`, `vram_after` in bytes; None is unknown."""


class Trims:
    """Wishes come from any thread (`wish`), are served in the engine's (`serve`)."""

    def __init__(self, heartbeat: HeartbeatState) -> None:
        self._heartbeat = heartbeat
        self._wishes: deque[Future[Report]] = deque()
        self._engine_next = False

    def wish(self) -> Future[Report]:
        """Ask; the result comes when it was done."""
        wish: Future[Report] = Future()
        self._wishes.append(wish)
        return wish

    def serve(self, engine_trim: Callable[[], None] | None = None) -> None:
        """Do what was asked, if anything; without `engine_trim` the engine's turn comes at the next call."""
        if not self._wishes and not (self._engine_next and engine_trim):
            return
        before = self._heartbeat.sample()
        if engine_trim is not None:
            engine_trim()
        self._engine_next = engine_trim is None
        clean_up()
        after = self._heartbeat.sample()
        report: Report = {
            f"{name}_{when}": sizes[f"{name}_bytes"]
            for name in ("rss", "vram")
            for when, sizes in (("before", before), ("after", after))
        }
        while self._wishes:
            self._wishes.popleft().set_result(dict(report))

    def refuse(self) -> None:
        """The worker goes: answer who still waits."""
        while self._wishes:
            self._wishes.popleft().set_exception(CosydError("shutting_down"))
