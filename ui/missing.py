"""What is not there: a page for a browser, OpenAI's error object for a program, never a bare word of a
library's. An ASGI middleware around the routes and Gradio, inside the doors.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.codes import CosydError
from ui.auth import wants_html
from ui.errors import error_response
from ui.language import language_of
from ui.pages.programs import nothing_page

OURS = ("/v1/", "/api/", "/gradio_api/", "/assets/")
"""Addresses of programs: they get JSON (Gradio's own page reads Gradio's), whatever they accept."""


class Missing:
    """Wraps `app`; `home` is the address of the page."""

    def __init__(self, app: ASGIApp, home: str) -> None:
        self._app, self._home = app, home

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or f"{scope['path']}/".startswith(OURS):
            await self._app(scope, receive, send)
            return
        missing = False

        async def watched(message: Message) -> None:
            nonlocal missing
            if message["type"] == "http.response.start" and message["status"] == 404:
                missing = True
            if not missing:
                await send(message)

        await self._app(scope, receive, watched)
        if missing:
            headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
            language = language_of(scope["query_string"].decode("latin-1"), headers)
            if wants_html(scope["method"], headers):
                await nothing_page(language, self._home)(scope, receive, send)
            else:
                await error_response(CosydError("not_found"), language)(scope, receive, send)
