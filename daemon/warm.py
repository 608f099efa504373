"""Which engine is loaded ahead of work at this time of day (`keep_warm`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipeline.clock import Clock
from pipeline.model_files import ENGINE, model_ready
from pipeline.profile import Config
from pipeline.profile.values import within_hours

LOOK_EVERY_S = 60.0
BUILTIN = "builtin"


class Warm:
    """`engines()` each tick: cheap, since the model's files are looked at once a minute."""

    def __init__(self, config: Callable[[], Config], clock: Clock, state: Path) -> None:
        self._config, self._clock, self._state = config, clock, state
        self._looked_at = float("-inf")
        self._ready = False

    def engines(self) -> frozenset[str]:
        """The model's engine where the model is, since its load is what one waits for; else the built-in."""
        hours = self._config().keep_warm
        if not hours:
            return frozenset()
        local = time.localtime(self._clock.wall())
        if not within_hours(hours, local.tm_hour * 60 + local.tm_min):
            return frozenset()
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at, self._ready = now, model_ready(self._state)
        return frozenset({ENGINE if self._ready else BUILTIN})
