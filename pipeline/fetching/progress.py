"""What is told while a model is fetched, converted or looked through: numbers, no words. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`name` is worked on, `done` of `total` bytes over all files; `rate` bytes a second, None is unknown."""

    name: str
    done: int
    total: int
    rate: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds to go at this rate."""
        return (self.total - self.done) / self.rate if self.rate else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pause before the next try: why (a word of [model.why]), how long, which try it was."""

    why: str
    seconds: float
    tries: int


Tell = Callable[[Progress | Waiting], None]


class Meter:
    """Adds up bytes and tells them, at most every `every_s`; the rate is that of the last ten seconds."""

    WINDOW_S = 10.0

    def __init__(self, total: int, tell: Tell, monotonic: Callable[[], float], every_s: float = 0.2) -> None:
        self._total, self._tell, self._monotonic, self._every_s = total, tell, monotonic, every_s
        self._done = 0
        self._moved: deque[tuple[float, int]] = deque()
        self._told_at = -1e9

    def had(self, count: int) -> None:
        """Bytes that were there already, or (negative) are thrown away: they say nothing about the rate."""
        self._done += count

    def moved(self, name: str, count: int) -> None:
        """Bytes that came just now."""
        now = self._monotonic()
        self._done += count
        self._moved.append((now, count))
        while self._moved[0][0] < now - self.WINDOW_S:
            self._moved.popleft()
        if now - self._told_at >= self._every_s:
            self.tell(name)

    def tell(self, name: str) -> None:
        """Tell where it stands."""
        now = self._told_at = self._monotonic()
        seconds = now - self._moved[0][0] if self._moved else 0.0
        rate = (sum(n for _, n in self._moved) - self._moved[0][1]) / seconds if seconds > 0.5 else None
        self._tell(Progress(name, self._done, self._total, rate or None))

    def wait(self, waiting: Waiting) -> None:
        """Tell of a pause."""
        self._tell(waiting)
