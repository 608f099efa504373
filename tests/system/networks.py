"""Two hosts on one cable: a pair of network namespaces joined by veth, with addresses of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SERVER_ADDRESS = "10.203.0.2"
CLIENT_ADDRESS = "10.203.0.3"


def ip(*arguments: str) -> None:
    """`ip ARGUMENTS`. Raises AssertionError with what it said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@dataclass(frozen=True)
class Cable:
    """Names of the two namespaces."""

    server: str
    client: str

    def get(
        self, url: str, headers: dict[str, str] | None = None, timeout_s: float = 30
    ) -> tuple[int, str, str]:
        """GET from the client's side, with cookies: (status, body, final address); status 0 if refused."""
        script = (
            "import httpx, sys\n"
            "try:\n"
            "    with httpx.Client(follow_redirects=True, timeout=10, trust_env=False) as client:\n"
            "        reply = client.get(sys.argv[1], headers=dict(a.split('=', 1) for a in sys.argv[2:]))\n"
            "        sys.stdout.write(f'{reply.status_code}\\n{reply.url}\\n{reply.text}')\n"
            "except httpx.TransportError as error:\n"
            "    sys.stdout.write(f'0\\n-\\n{error}')\n"
        )
        pairs = [f"{key}={value}" for key, value in (headers or {}).items()]
        done = subprocess.run(
            ["ip", "netns", "exec", self.client, sys.executable, "-c", script, url, *pairs],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        status, address, body = done.stdout.split("\n", 2)
        return int(status), body, address


@contextmanager
def cable() -> Iterator[Cable]:
    """Makes both namespaces and takes them away again. Needs root. They reach each other and nothing else."""
    pair = Cable(f"cosyd-s{os.getpid()}", f"cosyd-c{os.getpid()}")
    try:
        for name in (pair.server, pair.client):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "link",
            "add",
            "eth0",
            "netns",
            pair.server,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            pair.client,
        )
        for name, address in ((pair.server, SERVER_ADDRESS), (pair.client, CLIENT_ADDRESS)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield pair
    finally:
        for name in (pair.server, pair.client):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
