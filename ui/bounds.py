"""What a request may bring, as ASGI middleware: bodies of bounded size, and no way into what we do not use.

Gradio reads a JSON body whole into memory and takes uploads in any number; our page needs neither.
Refused before anything is read where the length is declared, else as soon as it is too much.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.codes import CosydError
from pipeline.profile import Config
from ui.api.http import body_limit
from ui.errors import error_response
from ui.language import language_of

CLOSED = re.compile(
    r"/monitoring(/|$)|/gradio_api/(upload|run/|api/|proxy=|stream/|process_recording|vibe|undo-vibe|"
    r"component_server|deep_link|profiling|dev/|run-history|runs)"
)
"""Doors of Gradio that nothing of ours goes through: files, other hosts, old protocols."""


OURS = ("/api/", "/v1/")
"""Read their bodies piece by piece, with limits of their own."""


class Bounds:
    """Wraps `app`; `config` has the limits."""

    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app, self._config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        language = language_of(scope["query_string"].decode("latin-1"), headers)
        if CLOSED.match(re.sub(r"/{2,}", "/", scope["path"])):
            await error_response(CosydError("not_found"), language)(scope, receive, send)
            return
        if scope["path"].startswith(OURS):
            await self._app(scope, receive, send)
            return
        limit = body_limit(self._config.limits.text_chars)
        declared = headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > limit:
            error = CosydError("text_too_long", length=int(declared), limit=limit)
            await error_response(error, language)(scope, receive, send)
            return
        seen, started = 0, False

        async def bounded() -> Message:
            nonlocal seen
            if seen <= limit:
                message = await receive()
                seen += len(message.get("body", b""))
                if seen <= limit:
                    return message
            return {"type": "http.disconnect"}  # whoever reads gives up

        async def watched(message: Message) -> None:
            nonlocal started
            if started or seen <= limit:
                started = True
                await send(message)

        try:
            await self._app(scope, bounded, watched)
        except Exception:
            if seen <= limit:
                raise
        if seen > limit and not started:
            error = CosydError("text_too_long", length=seen, limit=limit)
            await error_response(error, language)(scope, receive, send)
