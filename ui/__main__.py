"""`python -m ui`: the web child of the supervisor (docs/architecture.md says how it is started)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import Any

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
from pipeline.store.db import SCHEMA_VERSION, check_schema, connect

log = logging.getLogger("cosyd.web")


def prepare_gradio(context: ChildContext) -> None:
    """Gradio reads these at import: no telemetry, no share tunnel, its files in our bounded folder."""
    folder = context.paths.tmp / "gradio"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    conn = connect(context.paths.database, "read")
    check_schema(conn)
    conn.close()
    from ui.app import Web
    from ui.server import DEFAULT_DRAIN_S, Host
    from ui.services import Services

    if "http" not in context.listen_fds:
        raise CosydError("config_error", problems=["COSYD_LISTEN_FDS: no http"])
    listener = socket.socket(fileno=context.listen_fds["http"])
    # The real address decides, not the configuration: a socket on the LAN never goes without a login.
    login = listener.family != socket.AF_UNIX and needs_login(str(listener.getsockname()[0]))
    services = Services(context.config, context.paths)
    web = Web(services, authenticate=login)
    host = Host(web, [listener])

    def take_state(params: dict[str, Any]) -> None:
        services.state = params

    def drain(params: dict[str, Any]) -> None:
        host.drain(float(params.get("deadline_s", DEFAULT_DRAIN_S)))

    def shutdown(params: dict[str, Any]) -> None:
        host.drain(float(params.get("grace_s", DEFAULT_DRAIN_S)))

    link = context.open_link(
        {"state": take_state, "drain": drain, "shutdown": shutdown, "trim": lambda _: trim_memory()}
    )
    services.link = link
    link.notify("hello", role="web", engine=None, pid=os.getpid(), schema=SCHEMA_VERSION)
    start_heartbeat(link, HeartbeatState(), context.config.heartbeat_s)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, host.drain, DEFAULT_DRAIN_S)
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
