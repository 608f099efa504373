"""Asking the swap helper: from the supervisor's loop without waiting, or from the command line.

An answer is always an object; where nobody answers it is `{"ok": false, "reason": "no_helper"}` or another
reason of the same form.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daemon.loop import READ, Loop, Timer

SOCKET = Path("/run/cosyd-swap.sock")
ANSWER_S = 30.0
CHANGE_S = 900.0
"""Gigabytes of zeros on a slow disk, or brought back into RAM."""
LONGEST_BYTES = 65536
STATUS = {"v": 1, "op": "status"}
Answered = Callable[[dict[str, Any]], None]


def refusal(reason: str) -> dict[str, Any]:
    """An answer that nobody sent."""
    return {"v": 1, "ok": False, "reason": reason, "params": {}}


def set_request(own_bytes: int) -> dict[str, Any]:
    """So much of our own."""
    return {"v": 1, "op": "set", "own_bytes": own_bytes}


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "no_helper"
    return "not_allowed" if isinstance(error, PermissionError) else "helper_failed"


def _parse(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        return refusal("helper_failed")
    return answer if isinstance(answer, dict) and "ok" in answer else refusal("helper_failed")


def ask_now(request: Mapping[str, Any], path: Path = SOCKET, timeout_s: float = CHANGE_S) -> dict[str, Any]:
    """One request; waits for its answer."""
    data = b""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(json.dumps(request).encode() + b"\n")
            while len(data) <= LONGEST_BYTES and (more := sock.recv(LONGEST_BYTES)):
                data += more
    except OSError as error:
        return refusal(_reason(error))
    return _parse(data)


class _Call:
    """One request on its way."""

    def __init__(self, loop: Loop, sock: socket.socket, timeout_s: float, answered: Answered) -> None:
        self._loop, self._sock, self._answered = loop, sock, answered
        self._data = b""
        self._timer: Timer = loop.later(timeout_s, lambda: self._end(refusal("helper_failed")))
        loop.watch(sock.fileno(), READ, self._ready)

    def _ready(self, events: int) -> None:
        try:
            more = self._sock.recv(LONGEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        self._data += more
        if not more or len(self._data) > LONGEST_BYTES:
            self._end(_parse(self._data))

    def _end(self, answer: dict[str, Any]) -> None:
        self._timer.cancel()
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._answered(answer)


class SwapClient:
    """`ask` never waits; the answer comes through the loop, or at once when nobody listens."""

    def __init__(self, loop: Loop, path: Path = SOCKET) -> None:
        self._loop, self._path = loop, path

    def ask(self, request: Mapping[str, Any], timeout_s: float, answered: Answered) -> None:
        """One request."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.connect(str(self._path))
            sock.send(json.dumps(request).encode() + b"\n")  # far below any socket buffer
        except OSError as error:
            sock.close()
            answered(refusal(_reason(error)))
            return
        _Call(self._loop, sock, timeout_s, answered)
