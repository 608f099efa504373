"""sd_notify through systemd-python; nothing to do without a NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


def watchdog_interval_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Half of WATCHDOG_USEC, None when no watchdog is meant for `pid`."""
    try:
        usec = int(environ.get("WATCHDOG_USEC", ""))
        if environ.get("WATCHDOG_PID") and int(environ["WATCHDOG_PID"]) != pid:
            return None
    except ValueError:
        return None
    return usec / 2e6 if usec > 0 else None


class Notifier:
    """Tells systemd how things stand. `WATCHDOG=1` goes out only from `round_done`, after a whole tick."""

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        send: Callable[[str], object] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.active = bool(environ.get("NOTIFY_SOCKET"))
        self._monotonic = monotonic
        self._interval_s = watchdog_interval_s(environ, os.getpid()) if self.active else None
        self._fed_at = float("-inf")
        self._status = ""
        self._last_word = False
        self._send = send
        if self.active and send is None:
            try:
                from systemd import daemon as sd  # type: ignore[attr-defined]

                self._send = sd.notify
            except ImportError:
                self.active = False
                log.error(
                    "NOTIFY_SOCKET is set, but systemd-python is not installed: systemd will not learn "
                    "that cosyd is ready. Install it with: pip install 'cosyd[systemd]'"
                )

    @property
    def watchdog_s(self) -> float | None:
        """How often `round_done` must come, None without a watchdog."""
        return self._interval_s

    def _tell(self, state: str) -> None:
        if self.active and self._send is not None:
            self._send(state)

    def ready(self, status: str) -> None:
        """READY=1: the guard has gone round once, jobs are taken. How far page and voices are is `status`."""
        self._tell(f"READY=1\nSTATUS={status}")

    def failed(self, status: str) -> None:
        """Why it ends, and the cure: the last word in `systemctl status`."""
        self.status(" ".join(status.split()))
        self._last_word = True

    def status(self, status: str) -> None:
        """One line for `systemctl status`, sent when it changed."""
        if status != self._status and not self._last_word:
            self._status = status
            self._tell(f"STATUS={status}")

    def round_done(self) -> None:
        """A whole tick went well; feeds the watchdog when half its time is over."""
        if self._interval_s is None:
            return
        now = self._monotonic()
        if now - self._fed_at >= self._interval_s * 0.9:
            self._fed_at = now
            self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        """RELOADING=1, with the time that systemd wants; `ready` ends it."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)}")

    def stopping(self) -> None:
        """STOPPING=1."""
        self._tell("STOPPING=1")
