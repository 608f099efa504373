"""Tells the state to the page, subscribers and systemd: on change, twice a second at most; events at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daemon.children import Children
from daemon.control_server import ControlServer
from daemon.loop import Loop
from daemon.notifier import Notifier
from daemon.recorder import event_object
from daemon.status import View, fingerprint, state_object, status_line
from pipeline.events import Event

PUSH_EVERY_S = 0.5


class Teller:
    """`view` gives the supervisor's state as a value. `changed` may be called as often as one likes."""

    def __init__(
        self,
        loop: Loop,
        view: Callable[[], View],
        children: Children,
        control: ControlServer,
        notifier: Notifier,
    ) -> None:
        self._loop, self._view, self._children = loop, view, children
        self._control, self._notifier = control, notifier
        self._pushed: Any = None
        self._pushed_at = float("-inf")
        self._waiting = False

    def status(self) -> dict[str, Any]:
        """What `status` answers."""
        return state_object(self._view())

    def event(self, event: Event) -> None:
        """To those who subscribed."""
        if self._control.subscribers:
            self._control.publish("events", "event", event_object(event))

    def changed(self) -> None:
        """Something may have changed."""
        wait_s = self._pushed_at + PUSH_EVERY_S - self._loop.now()
        if wait_s <= 0:
            self._push()
        elif not self._waiting:
            self._waiting = True
            self._loop.later(wait_s, self._push)

    def _push(self) -> None:
        self._waiting = False
        view = self._view()
        state = state_object(view)
        web = self._children.web
        mark = (fingerprint(state), web.process and web.process.pid)
        self._notifier.status(status_line(view))
        if mark == self._pushed:
            return
        self._pushed, self._pushed_at = mark, self._loop.now()
        for slot in (web, self._children.successor):
            if slot is not None and slot.link is not None:
                slot.link.notify("state", state)
        self._control.publish("state", "state", state)
