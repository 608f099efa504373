"""`python -m ui`: the web child of the supervisor (docs/architecture.md says how it is started)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys

from pipeline.access import needs_login
from pipeline.child import (
    ChildContext,
    HeartbeatState,
    adopt,
    clean_up,
    own_memory_bytes,
    settle_heap,
    start_heartbeat,
)
from pipeline.codes import CosydError
from pipeline.logs import set_up
from pipeline.rpc import Link
from pipeline.store.db import SCHEMA_VERSION, check_schema, connect
from ui.orders import DEFAULT_DRAIN_S, Orders
from ui.quiet import silence_tracebacks
from ui.scratch import close_scratch, open_scratch

log = logging.getLogger("cosyd.web")


def prepare_gradio(context: ChildContext) -> None:
    """Gradio reads these at import: no telemetry, no share tunnel, its files in our bounded folder."""
    folder = open_scratch(context.paths.tmp) / "gradio"
    folder.mkdir(mode=0o700)
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        GRADIO_TEMP_DIR=str(folder),
        HF_HUB_DISABLE_TELEMETRY="1",
        DO_NOT_TRACK="1",
    )
    for name in (
        "GRADIO_SHARE",
        "GRADIO_MCP_SERVER",
        "GRADIO_SSR_MODE",
        "GRADIO_ROOT_PATH",
        "GRADIO_ALLOWED_PATHS",
    ):
        os.environ.pop(name, None)


def trim_memory() -> dict[str, int | None]:
    """Give unused heap back to the system; the numbers of CONTRACTS 4."""
    before = own_memory_bytes()
    clean_up()
    return {"rss_before": before, "rss_after": own_memory_bytes(), "vram_before": None, "vram_after": None}


async def serve(context: ChildContext) -> int:
    """Run until told to stop; the exit status."""
    prepare_gradio(context)
    orders = Orders(lambda: close_scratch(context.paths.tmp))
    # Before the imports: they take seconds, and a stop may come in any of them. After the folder is made: who
    # ends us removes it, and nobody may make it anew.
    link = context.open_link(
        {
            "state": orders.take_state,
            "drain": lambda params: orders.end(params.get("deadline_s"), closing=False),
            "shutdown": lambda params: orders.end(params.get("grace_s"), closing=True),
            "trim": lambda _: trim_memory(),
        }
    )
    link.notify("hello", role="web", engine=None, pid=os.getpid(), schema=SCHEMA_VERSION)
    # Before the imports: each of them moves the deadline of the start.
    start_heartbeat(link, HeartbeatState(), context.config.heartbeat_s)
    try:
        return await _serve(context, link, orders)
    except CosydError as error:
        link.notify("fatal", code=error.code, params=error.params)
        raise
    finally:
        close_scratch(context.paths.tmp)


async def _serve(context: ChildContext, link: Link, orders: Orders) -> int:
    with contextlib.closing(connect(context.paths.database, "read")) as conn:
        check_schema(conn)
    from ui.app import Web
    from ui.server import Host
    from ui.services import Services

    if "http" not in context.listen_fds:
        raise CosydError("config_error", problems=["COSYD_LISTEN_FDS: no http"])
    listener = socket.socket(fileno=context.listen_fds["http"])
    # The real address decides, not the configuration: a socket on the LAN never goes without a login.
    login = listener.family != socket.AF_UNIX and needs_login(str(listener.getsockname()[0]))
    services = Services(context.config, context.paths, link)
    web = Web(services, authenticate=login)
    host = Host(web, [listener])
    orders.serve(host, services)
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: orders.end(DEFAULT_DRAIN_S, closing=True)
    )
    started = asyncio.Event()

    async def announce() -> None:
        await started.wait()
        settle_heap()
        # What start-up needed once (parsing, import caches) goes back before the numbers are taken.
        trim_memory()
        link.notify("ready", capabilities={}, footprint={"rss_bytes": own_memory_bytes(), "vram_bytes": None})
        log.info("ready")

    announcing = asyncio.ensure_future(announce())
    await host.run(started)
    announcing.cancel()
    services.close()
    link.notify("drained")
    return 0


def main() -> int:
    """The process's exit status."""
    set_up("web")
    silence_tracebacks()
    # httpx logs every request line of gradio_client; nothing of ours speaks HTTP outwards.
    for noisy in ("httpx", "asyncio", "multipart"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        return asyncio.run(serve(adopt()))
    except CosydError as error:
        log.error("%s %s", error.code, error.params)
        return error.info.exit_status


if __name__ == "__main__":
    sys.exit(main())
