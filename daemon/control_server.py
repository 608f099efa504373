"""control.sock: the door of the CLI and of other programs of this machine (CONTRACTS 4). In the loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from daemon.connection import Answer, Connection, MethodUnknown
from daemon.loop import READ, Loop
from pipeline.codes import CosydError
from pipeline.profile.problems import problem

TOPICS = frozenset({"state", "events"})
MAX_CLIENTS = 64

Methods = Callable[[str, dict[str, Any], Answer], bool]


class ControlServer:
    """Accepts clients; `methods(name, params, reply)` answers them, False for an unknown method."""

    def __init__(self, loop: Loop, path: Path, methods: Methods) -> None:
        self._loop, self._path, self._methods = loop, path, methods
        self._clients: set[Connection] = set()
        path.unlink(missing_ok=True)  # ours: the instance lock is held
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound private, then opened to the group: never open for a moment to everybody.
        mask = os.umask(0o177)
        try:
            self._sock.bind(_short(path))
        finally:
            os.umask(mask)
        path.chmod(0o660)
        self._sock.listen(16)
        self._sock.setblocking(False)
        loop.watch(self._sock.fileno(), READ, lambda _: self._accept())

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        if len(self._clients) >= MAX_CLIENTS:
            sock.close()
            return
        self._clients.add(Connection(self._loop, sock, self._called, self._clients.discard))

    def _called(self, conn: Connection, method: str, params: dict[str, Any], reply: Answer | None) -> None:
        answer: Answer = reply if reply is not None else lambda value: None
        if method == "subscribe":
            topics = params.get("topics", sorted(TOPICS))
            if not isinstance(topics, list) or not TOPICS.issuperset(map(str, topics)):
                raise CosydError(
                    "bad_value", field="topics", reason="not_one_of", value=str(topics)[:80],
                    allowed=", ".join(sorted(TOPICS)),
                )  # fmt: skip
            conn.topics = frozenset(map(str, topics))
            answer({"topics": sorted(conn.topics)})
        elif not self._methods(method, params, answer):
            answer(MethodUnknown(f"unknown method {method}"))

    def publish(self, topic: str, method: str, params: dict[str, Any]) -> None:
        """A notification to all who subscribed to `topic`."""
        for client in [c for c in self._clients if topic in c.topics]:
            client.notify(method, params)

    @property
    def subscribers(self) -> bool:
        """Whether anybody listens."""
        return any(client.topics for client in self._clients)

    def close(self) -> None:
        """Close all and remove the socket file."""
        for client in list(self._clients):
            client.close()
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _short(path: Path) -> str:
    """A socket path has 107 bytes at most; a deep state folder is reached relative to the working folder."""
    text = str(path)
    if len(os.fsencode(text)) <= 107:
        return text
    relative = os.path.relpath(path)
    if len(os.fsencode(relative)) > 107:
        raise CosydError("config_error", problems=[problem(str(path), "path_long")])
    return relative
