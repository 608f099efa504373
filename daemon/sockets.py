"""The listening sockets, which the supervisor owns so that a new web never refuses a connection.

A taken port is an error that names who holds it; the page never moves to another port in silence.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.codes import CosydError
from pipeline.profile.problems import problem

BACKLOG = 512
WYOMING_TRIES = 20


def listen(host: str, port: int, key: str) -> socket.socket:
    """A listening TCP socket. Raises CosydError(config_error) naming `key` and, for a taken port, its
    holder."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        wrong = problem(key, "no_address", host=host, detail=str(error))
        raise CosydError("config_error", problems=[wrong]) from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host in ("", "::") else 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise CosydError("config_error", problems=[_why(error, host, port, key)]) from error
    sock.setblocking(False)
    return sock


def _why(error: OSError, host: str, port: int, key: str) -> dict[str, Any]:
    if error.errno == errno.EADDRINUSE:
        holder = find_holder(port)
        if holder is None:
            return problem(key, "port_taken", port=port)
        return problem(key, "port_taken_by", port=port, name=holder[0], pid=holder[1])
    if error.errno == errno.EACCES:
        return problem(key, "port_root", port=port)
    return problem(key, "no_address", host=host, detail=error.strerror)


def listen_next_free(host: str, port: int, key: str) -> socket.socket:
    """As `listen`, but takes one of the next ports when this one is taken (Wyoming: the port is
    announced)."""
    for candidate in range(port, min(port + WYOMING_TRIES, 65536)):
        try:
            return listen(host, candidate, key)
        except CosydError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE):
                raise
    return listen(host, port, key)


def find_holder(port: int, proc: Path = Path("/proc")) -> tuple[str, int] | None:
    """Name and pid of the process that listens on `port`, None when it cannot be seen (another user's)."""
    inodes: set[str] = set()
    for table in ("net/tcp", "net/tcp6"):
        with suppress(OSError):
            for line in (proc / table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            for fd in (folder / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(fd) in inodes:
                        return (folder / "comm").read_text("utf-8", "replace").strip(), int(folder.name)
    return None


def lan_address() -> str:
    """The address other machines reach this one by: that of the default route, else the first that is not
    loopback, else every address. Sends no packet and asks no DNS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.connect(("192.0.2.1", 9))  # TEST-NET-1: only the route is looked up
        address: str = sock.getsockname()[0]
        if not address.startswith(("127.", "0.")):
            return address
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for found in addresses:
            if found.family == socket.AF_INET and not found.address.startswith("127."):
                return found.address
    return "0.0.0.0"
