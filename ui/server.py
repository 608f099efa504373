"""The web server in one process: uvicorn on the inherited socket, and an orderly end (drain).

A drain closes this process's copy of the listening socket (the supervisor keeps its own, so a new web takes
new connections at once), lets sound that flows reach its end, and then returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn

from ui.app import Web
from ui.patience import PatientProtocol, allow_many_files

log = logging.getLogger("cosyd.web")
BACKLOG = 1024


class _Quiet(logging.Filter):
    """Drops uvicorn's lines that tell nothing new: a stream that we broke off on purpose is one of them."""

    _DROPPED = (
        "ASGI callable returned without completing response.",
        "Waiting for",
        "Shutting down",
        "Started server",
    )

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._DROPPED)


class Server(uvicorn.Server):
    """uvicorn without signal handlers: the supervisor tells when to stop, by message or SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(web: Web) -> Server:
    """No access log (it would hold login tokens and search words), no server header, our root_path."""
    config = uvicorn.Config(
        web.app,
        log_config=None,
        log_level="info",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=True,
        forwarded_allow_ips="127.0.0.1",
        root_path=web.services.config.web.root_path,
        lifespan="on",
        timeout_keep_alive=65,
        backlog=BACKLOG,
        http=PatientProtocol,
        ws="none",
        h11_max_incomplete_event_size=64 * 1024,
    )
    logging.getLogger("uvicorn.error").addFilter(_Quiet())
    return Server(config)


class Host:
    """Runs the server on the loop that it is made in; `drain` may be called from any thread, at any time."""

    def __init__(self, web: Web, sockets: list[socket.socket]) -> None:
        self._web, self._sockets = web, sockets
        allow_many_files()
        self._server = make_server(web)
        self._loop = asyncio.get_running_loop()

    async def run(self, started: asyncio.Event) -> None:
        """Serve until a drain is over. Sets `started` when requests are answered."""
        serving = asyncio.ensure_future(self._server.serve(self._sockets))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        if self._server.started:
            started.set()
        await serving

    def drain(self, deadline_s: float, *, closing: bool) -> None:
        """Stop accepting and end when the streams have, or after `deadline_s`. Thread-safe, idempotent.

        `closing`: no other web takes over, and no worker goes on; streams end with the piece in hand.
        """
        self._loop.call_soon_threadsafe(self._begin_drain, deadline_s, closing)

    def _begin_drain(self, deadline_s: float, closing: bool) -> None:
        self._web.end_streams(closing=closing)
        self._server.config.timeout_graceful_shutdown = max(0, int(deadline_s + 0.999))
        self._server.should_exit = True
