"""HTTP connections that wait for a client no longer than is good for the others.

uvicorn has a limit for the pause between two requests only. A client that connects and says nothing, or half
a request, would hold its connection for ever; some thousands of them, and nobody else comes in. One that is
slow to *read* is left alone: a paused player is one.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENT_S = 30.0
"""How long a request may stop in the middle of its head or body, or not begin."""
FRESH_S = 1.0
"""A client that connected this short before the page was told to end is about to ask; it still may."""
LOOK_S = 5.0
WANTED_FILES = 16384


class PatientProtocol(H11Protocol):
    """Closes the connection of who is silent while it is his turn to speak; answers who has just come."""

    silent_s = SILENT_S

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._heard_at = self._connected_at = self.loop.time()
        self._ending = False
        self._look: asyncio.TimerHandle | None = self.loop.call_later(self._pause_s(), self._look_at)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self._ending and self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """The server ends. uvicorn drops who has not asked yet, also who was accepted a moment ago and whose
        request is on its way, though another page would have answered it."""
        left_s = self._connected_at + FRESH_S - self.loop.time()
        if self.cycle is None and left_s > 0:
            self._ending = True
            self.loop.call_later(left_s, self._close)
        else:
            super().shutdown()

    def _close(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        super().connection_lost(exc)

    def _pause_s(self) -> float:
        return min(LOOK_S, self.silent_s / 2)

    def _their_turn(self) -> bool:
        cycle = self.cycle
        if cycle is None:
            return True
        if cycle.response_complete:
            # Between two requests the pause has its own limit, unless half a request has come already.
            return self.timeout_keep_alive_task is None
        return bool(cycle.more_body) and not self.flow.read_paused

    def _look_at(self) -> None:
        if self._their_turn() and self.loop.time() - self._heard_at > self.silent_s:
            self._look = None
            self.transport.close()
            return
        if not self._their_turn():
            self._heard_at = self.loop.time()
        self._look = self.loop.call_later(self._pause_s(), self._look_at)


def allow_many_files() -> None:
    """Raise the soft limit of open files (1024 under most systems), of which each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
