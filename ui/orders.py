"""What the supervisor orders a web to do, at whatever moment the order comes: before it serves, too.

Called in the link's thread. Light: it is imported before anything else is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

DEFAULT_DRAIN_S = 10.0
CLOSING_RATIO = 0.7
"""Of the grace until SIGKILL, what streams may take; the rest is for the end itself."""


class Host(Protocol):
    """`ui.server.Host`."""

    def drain(self, deadline_s: float, *, closing: bool) -> None: ...


class Services(Protocol):
    """`ui.services.Services`."""

    state: Any


class Orders:
    """`clean_up` is called when the process ends at once, because it did not serve anybody yet."""

    def __init__(self, clean_up: Callable[[], None], leave: Callable[[int], object] = os._exit) -> None:
        self._clean_up, self._leave = clean_up, leave
        self._lock = threading.Lock()
        self._host: Host | None = None
        self._services: Services | None = None
        self._state: Any = None

    def serve(self, host: Host, services: Services) -> None:
        """From now on there is somebody to drain."""
        with self._lock:
            self._host, self._services = host, services
            if self._state is not None:
                services.state = self._state

    def take_state(self, params: dict[str, Any]) -> None:
        """`state{...}`: the newest counts."""
        with self._lock:
            self._state = params
            if self._services is not None:
                self._services.state = params

    def end(self, seconds: Any, *, closing: bool) -> None:
        """`drain` (another web takes over) or `shutdown` (`closing`: the house closes)."""
        with self._lock:
            if self._host is None:
                try:
                    self._clean_up()
                finally:
                    self._leave(0)
                return
            known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0
            limit_s = float(seconds) if known else DEFAULT_DRAIN_S
            self._host.drain(limit_s * CLOSING_RATIO if closing else limit_s, closing=closing)
