"""The CLI's end of control.sock: connect, ask, hang up. Who is not there is None, not an error."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.rpc import Link

ANSWER_S = 5.0
_SUN_PATH = 107
"""A Unix socket's address holds so many bytes; a deep state folder is reached through its descriptor."""


def connect_control(path: Path) -> socket.socket | None:
    """A connected socket, or None when nothing listens there. Raises CosydError(unauthorized) when the
    socket is there and may not be used."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    folder: int | None = None
    try:
        address = str(path)
        if len(os.fsencode(address)) > _SUN_PATH:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            address = f"/proc/self/fd/{folder}/{path.name}"
        sock.settimeout(ANSWER_S)
        sock.connect(address)
    except PermissionError:
        sock.close()
        raise CosydError("unauthorized", reason="control_socket", path=str(path)) from None
    except OSError:
        sock.close()
        return None
    finally:
        if folder is not None:
            os.close(folder)
    return sock


@contextmanager
def control(paths: StatePaths) -> Iterator[Link | None]:
    """A link to the running supervisor, or None. Closed at the end of the block."""
    sock = connect_control(paths.control_socket)
    if sock is None:
        yield None
        return
    link = Link(sock).start()
    try:
        yield link
    finally:
        link.close()


def status(paths: StatePaths) -> dict[str, Any] | None:
    """The `status` object (docs/architecture.md), or None when cosyd does not run or does not answer."""
    with control(paths) as link:
        if link is None:
            return None
        try:
            answer = link.call("status", timeout_s=ANSWER_S)
        except CosydError as error:
            if error.code == "shutting_down":
                return None
            raise
    return answer if isinstance(answer, dict) else None
