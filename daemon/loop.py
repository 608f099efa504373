"""The one loop that owns all supervisor state: epoll, timers, signals and posts from other threads.

Nothing that runs in it may wait. Other threads hand in work with `post`, the only thread-safe method.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.clock import Clock

log = logging.getLogger(__name__)
Callback = Callable[[], None]

READ, WRITE = select.EPOLLIN, select.EPOLLOUT


@dataclass(order=True, slots=True)
class Timer:
    """A call in the future; `cancel` forgets it."""

    when: float
    serial: int
    callback: Callback | None = field(compare=False)

    def cancel(self) -> None:
        """It will not be called."""
        self.callback = None


class Loop:
    """Use from one thread, but for `post`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._serial = itertools.count()
        self._posted: deque[Callback] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._signals: dict[int, Callback] = {}
        self._running = False
        self.failures = 0
        """Callbacks that raised. Our own bug; the watchdog is not fed for a round that had one."""
        self.watch(self._wake_read.fileno(), READ, lambda _: self._woken())

    # -- descriptors -------------------------------------------------------------------------------

    def watch(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` when `fd` is ready; a second call changes mask and handler."""
        if fd in self._handlers:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """No more calls for `fd`. Call it before closing the descriptor."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # -- time --------------------------------------------------------------------------------------

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    def later(self, delay_s: float, callback: Callback) -> Timer:
        """Call it once after `delay_s`."""
        timer = Timer(self.now() + delay_s, next(self._serial), callback)
        heapq.heappush(self._timers, timer)
        return timer

    # -- other threads and signals -----------------------------------------------------------------

    def post(self, callback: Callback) -> None:
        """Thread-safe: have the loop call it."""
        self._posted.append(callback)
        try:
            self._wake_write.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # full: it wakes anyway; closed: nobody is left to wake

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call it from the loop when the signal comes. Main thread only."""
        self._signals[number] = callback
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(number, lambda *_: None)

    def _woken(self) -> None:
        try:
            data = self._wake_read.recv(4096)
        except BlockingIOError:
            return
        for number in data:
            if number and (callback := self._signals.get(number)):
                self._call(callback)

    # -- running -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`."""
        self._running = True
        while self._running:
            self.once()

    def stop(self) -> None:
        """End `run` after this round."""
        self._running = False

    def once(self, limit_s: float | None = None) -> None:
        """One round: wait for a descriptor, a timer or a post, and serve what is due."""
        timeout = self._timers[0].when - self.now() if self._timers else limit_s
        if self._posted:
            timeout = 0.0
        if timeout is not None:
            timeout = max(0.0, min(timeout, limit_s) if limit_s is not None else timeout)
        for fd, events in self._epoll.poll(timeout):
            if handler := self._handlers.get(fd):
                self._call(lambda h=handler, e=events: h(e))  # type: ignore[misc]
        for _ in range(len(self._posted)):
            self._call(self._posted.popleft())
        now = self.now()
        while self._timers and self._timers[0].when <= now:
            if callback := heapq.heappop(self._timers).callback:
                self._call(callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception:
            # One wrong message must not end the process that keeps all others alive; it is counted and seen.
            self.failures += 1
            log.exception("a callback of the loop failed")

    def close(self) -> None:
        """Release the descriptors."""
        if self._signals:
            signal.set_wakeup_fd(-1)
        self._epoll.close()
        self._wake_read.close()
        self._wake_write.close()


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when `pid` ends, immune to pid reuse."""
    fd = os.pidfd_open(pid)
    os.set_inheritable(fd, False)
    return fd
