"""One JSON-RPC peer on a non-blocking socket in the loop: a child's link or a client of control.sock."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from daemon.loop import READ, WRITE, Loop, Timer
from pipeline import rpc
from pipeline.codes import CosydError

log = logging.getLogger(__name__)
Answer = Callable[[Any], None]
"""Called with the result, or with a CosydError."""


class Connection:
    """`on_call(connection, method, params, reply)` is called for each message of the peer; `reply` is None
    for a notification. `on_close` is called once."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_call: Callable[[Connection, str, dict[str, Any], Answer | None], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        sock.setblocking(False)
        sock.set_inheritable(False)
        self._loop, self._sock = loop, sock
        self._on_call, self._on_close = on_call, on_close
        self._reader = rpc.LineReader()
        self._out = bytearray()
        self._calls: dict[int, tuple[Answer, Timer]] = {}
        self._next_id = 0
        self.topics: frozenset[str] = frozenset()
        self.closed = False
        loop.watch(sock.fileno(), READ, self._ready)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; silently nothing when the peer is gone."""
        self._send(lambda: rpc.notification(method, params))

    def call(self, method: str, params: Mapping[str, Any], timeout_s: float, on_answer: Answer) -> None:
        """Send a request. `on_answer` gets the result, or a CosydError (`deadline` when none came)."""
        self._next_id += 1
        call_id = self._next_id

        def late() -> None:
            if found := self._calls.pop(call_id, None):
                found[0](CosydError("deadline"))

        self._calls[call_id] = (on_answer, self._loop.later(timeout_s, late))
        self._send(lambda: rpc.request(call_id, method, params))
        if self.closed and (found := self._calls.pop(call_id, None)):
            found[1].cancel()
            on_answer(CosydError("shutting_down", retry_after_s=2.0))

    def close(self) -> None:
        """Close it; open calls are answered with `shutting_down`."""
        if self.closed:
            return
        self.closed = True
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        for answer, timer in list(self._calls.values()):
            timer.cancel()
            answer(CosydError("shutting_down", retry_after_s=2.0))
        self._calls.clear()
        self._on_close(self)

    def _send(self, build: Callable[[], bytes]) -> None:
        if self.closed:
            return
        try:
            self._out += build()
        except rpc.ProtocolError as error:
            log.error("a message was not sent: %s", error)
            return
        self._flush()
        if len(self._out) > rpc.MAX_BACKLOG_BYTES:
            log.warning("a peer is 1 MiB behind; dropped")
            self.close()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._loop.watch(self._sock.fileno(), READ | WRITE if self._out else READ, self._ready)

    def _ready(self, events: int) -> None:
        if events & WRITE and not self.closed:
            self._flush()
        if self.closed or not events & ~WRITE:
            return
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for message in self._reader.feed(data):
                self._message(message)
                if self.closed:
                    return
        except rpc.ProtocolError as error:
            log.warning("a peer spoke no JSON-RPC: %s", error)
            self.close()

    def _message(self, message: dict[str, Any]) -> None:
        method, call_id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            if isinstance(call_id, int) and (found := self._calls.pop(call_id, None)):
                found[1].cancel()
                found[0](_value(message))
            return
        params = message.get("params")
        reply: Answer | None = None
        if isinstance(call_id, int | str) and not isinstance(call_id, bool):
            reply = self._reply_to(call_id)
        try:
            self._on_call(self, method, params if isinstance(params, dict) else {}, reply)
        except CosydError as error:
            if reply:
                reply(error)
        except Exception as error:
            if reply:
                reply(CosydError("internal", detail=type(error).__name__))
            raise

    def _reply_to(self, call_id: int | str) -> Answer:
        def reply(value: Any) -> None:
            if isinstance(value, MethodUnknown):
                line = rpc.failure(call_id, str(value), code=rpc.METHOD_NOT_FOUND)
            elif isinstance(value, CosydError):
                line = rpc.failure(call_id, value)
            else:
                try:
                    line = rpc.result(call_id, value)
                except rpc.ProtocolError as error:
                    line = rpc.failure(call_id, CosydError("internal", detail=str(error)))
            self._send(lambda: line)

        return reply


class MethodUnknown(Exception):
    """The peer asked for a method that is not there."""


def _value(message: Mapping[str, Any]) -> Any:
    if isinstance(error := message.get("error"), Mapping):
        try:
            rpc.raise_failure(error)
        except CosydError as found:
            return found
    return message.get("result")
