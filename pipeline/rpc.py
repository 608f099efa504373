"""JSON-RPC 2.0 over lines (CONTRACTS 4): framing, message values, and the child's end of its link.

The supervisor's loop uses `LineReader` and `encode` on its non-blocking sockets; children use `Link`, which
reads in a thread. One UTF-8 line a message, at most 64 KiB; a peer 1 MiB behind is dropped.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from pipeline.codes import CosydError

MAX_LINE_BYTES = 64 * 1024
MAX_BACKLOG_BYTES = 1024 * 1024
ERROR_CODE = -32000
METHOD_NOT_FOUND = -32601
PARSE_ERROR = -32700


class ProtocolError(Exception):
    """The peer sent what is no JSON-RPC line; the connection is not worth keeping."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One line, newline included. Raises ProtocolError when it would be too long."""
    text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":"))
    line = text.encode("utf-8", "replace") + b"\n"  # half a surrogate pair must not end a process
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"message of {len(line)} bytes")
    return line


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """A call that wants no answer."""
    return encode({"method": method, "params": dict(params or {})})


def request(call_id: int | str, method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """A call that wants an answer under `call_id`."""
    return encode({"id": call_id, "method": method, "params": dict(params or {})})


def result(call_id: int | str, value: Any) -> bytes:
    """The answer to a request."""
    return encode({"id": call_id, "result": value})


def failure(call_id: int | str | None, error: CosydError | str, *, code: int = ERROR_CODE) -> bytes:
    """An error answer: -32000 with data {code, params} for ours, a bare message for protocol errors."""
    if isinstance(error, CosydError):
        data: dict[str, Any] = {"code": error.code, "params": error.params}
        if error.retry_after_s is not None:
            data["retry_after_s"] = error.retry_after_s
        return encode({"id": call_id, "error": {"code": code, "message": error.code, "data": data}})
    return encode({"id": call_id, "error": {"code": code, "message": error}})


def raise_failure(error: Mapping[str, Any]) -> None:
    """Turn an `error` member back into the CosydError it was. Always raises."""
    data = error.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("code"), str):
        try:
            found = CosydError(
                data["code"], retry_after_s=data.get("retry_after_s"), **data.get("params", {})
            )
        except (ValueError, TypeError):
            pass
        else:
            raise found
    raise CosydError("internal", detail=str(error.get("message", error))[:200])


class LineReader:
    """Bytes in, messages out. Pure: feed it whatever arrived."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield each complete message. Raises ProtocolError on a line too long or not a JSON object."""
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if len(line) >= MAX_LINE_BYTES:
                raise ProtocolError("line too long")
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except ValueError as error:
                raise ProtocolError(f"not JSON: {error}") from None
            except RecursionError:
                raise ProtocolError("nested too deeply") from None
            if not isinstance(message, dict):
                raise ProtocolError("not an object")
            yield message
        if len(self._buffer) >= MAX_LINE_BYTES:
            raise ProtocolError("line too long")


Handler = Callable[[dict[str, Any]], Any]


class Link:
    """A child's end of the socketpair to the supervisor, or a client's of control.sock. Thread-safe.

    `handlers` map a method to a function of its params, called in the reader thread; what it returns is the
    result. A handler that needs time returns a Future: the answer is sent when that is done, while the reader
    goes on. `on_eof` is called once when the supervisor is gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        handlers: Mapping[str, Handler] | None = None,
        on_eof: Callable[[], None] | None = None,
    ) -> None:
        sock.setblocking(True)
        sock.set_inheritable(False)
        self._sock = sock
        self._handlers = dict(handlers or {})
        self._on_eof = on_eof
        self._send_lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._next_id = 0
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="link", daemon=True)

    def start(self) -> Link:
        """Start the reader thread."""
        self._thread.start()
        return self

    def notify(self, method: str, **params: Any) -> bool:
        """Send a notification. False when the peer is gone, which `on_eof` reports as well."""
        return self._send(notification(method, params))

    def call(self, method: str, *, timeout_s: float, **params: Any) -> Any:
        """Send a request, wait. Raises the peer's CosydError; `shutting_down` when it is gone or silent."""
        call = _Call()
        with self._send_lock:
            self._next_id += 1
            call_id = self._next_id
            self._calls[call_id] = call
        try:
            if self._closed or not self._send(request(call_id, method, params)):
                raise CosydError("shutting_down", retry_after_s=2.0)
            if not call.ready.wait(timeout_s):
                raise CosydError("shutting_down", retry_after_s=2.0)
        finally:
            self._calls.pop(call_id, None)
        if call.message is None:
            raise CosydError("shutting_down", retry_after_s=2.0)
        if error := call.message.get("error"):
            raise_failure(error)
        return call.message.get("result")

    def close(self) -> None:
        """Shut the socket down; the reader thread ends."""
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _send(self, line: bytes) -> bool:
        try:
            with self._send_lock:
                self._sock.sendall(line)
        except OSError:
            return False
        return True

    def _read(self) -> None:
        reader = LineReader()
        try:
            while data := self._sock.recv(65536):
                for message in reader.feed(data):
                    self._dispatch(message)
        except (OSError, ProtocolError):
            pass
        self._closed = True
        for call in list(self._calls.values()):
            call.ready.set()
        if self._on_eof is not None:
            self._on_eof()

    def _dispatch(self, message: dict[str, Any]) -> None:
        method, call_id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            call = self._calls.get(call_id) if isinstance(call_id, int) else None
            if call is not None:
                call.message = message
                call.ready.set()
            return
        handler = self._handlers.get(method)
        params = message.get("params")
        try:
            if handler is None:
                answer = failure(call_id, f"unknown method {method}", code=METHOD_NOT_FOUND)
            else:
                value = handler(params if isinstance(params, dict) else {})
                if isinstance(value, Future):
                    value.add_done_callback(lambda done: self._answer(call_id, done.result))
                    return
                answer = b"" if call_id is None else result(call_id, value)
        except Exception as error:
            # A handler's bug must not end the reader thread: the link is also how we learn to stop.
            answer = _failure_of(call_id, error)
        if call_id is not None:
            self._send(answer)

    def _answer(self, call_id: int | str | None, outcome: Callable[[], Any]) -> None:
        try:
            answer = result(call_id, outcome()) if call_id is not None else b""
        except Exception as error:
            answer = _failure_of(call_id, error)
        if call_id is not None:
            self._send(answer)


def _failure_of(call_id: int | str | None, error: Exception) -> bytes:
    if isinstance(error, CosydError):
        return failure(call_id, error)
    return failure(call_id, CosydError("internal", detail=f"{type(error).__name__}: {error}"[:200]))


class _Call:
    __slots__ = ("message", "ready")

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.message: dict[str, Any] | None = None
