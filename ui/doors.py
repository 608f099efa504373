"""The doors as one ASGI middleware around everything, Gradio included: Host, Origin, login (CONTRACTS 9).

Refuses before a body is read. `ui.auth` has the rules, `pipeline.access` the tokens; a failed request is
answered by `ui.errors`. Headers that belong on every answer are set here too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.codes import CosydError
from pipeline.messages import render
from ui.auth import SESSION_COOKIE, bearer, change_allowed, cookie, host_allowed, wants_html
from ui.errors import error_response
from ui.language import language_of
from ui.pages.door import door_page

log = logging.getLogger("cosyd.web")

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/health", "/login", "/favicon.ico"})
"""Answered without login: probes carry no key, and one must be able to come in."""

# The browser itself holds that nothing comes from elsewhere. Gradio's bundle needs eval and inline scripts.
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' blob: data:; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_EVERYWHERE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

Authenticator = Callable[[str | None, str | None], Awaitable[bool]]
"""(session cookie, bearer token) -> may come in."""


class Doors:
    """Wraps `app`. `authenticate` is None where no login is needed (a loopback bind)."""

    def __init__(self, app: ASGIApp, *, hosts: tuple[str, ...], authenticate: Authenticator | None) -> None:
        self._app, self._hosts, self._authenticate = app, hosts, authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # nothing here speaks WebSocket
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        refusal = await self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, _with_headers(send))

    async def _refusal(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        method, path = scope["method"], scope["path"]
        query = scope["query_string"].decode("latin-1")
        language = language_of(query, headers)
        if not host_allowed(headers.get("host"), self._hosts):
            return error_response(CosydError("misdirected", host=headers.get("host", "")[:80]), language)
        if not change_allowed(method, headers):
            error = CosydError("misdirected", host=headers.get("origin", "")[:80], reason="cross_site")
            return error_response(error, language, message=render("door.cross_site", language))
        if self._authenticate is None or path in OPEN_PATHS or path.startswith("/assets/cosyd/"):
            return None
        try:
            allowed = await self._authenticate(cookie(headers, SESSION_COOKIE), bearer(headers))
        except CosydError as error:
            return error_response(error, language)
        if allowed:
            return None
        if wants_html(method, headers):
            return door_page(language, "closed", status=401)
        return error_response(CosydError("unauthorized"), language)


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            # Gradio allows localhost origins by default; our page needs no cross-origin reader at all.
            kept: list[Any] = [
                (k, v) for k, v in message.get("headers", []) if not k.lower().startswith(b"access-control-")
            ]
            kept += _EVERYWHERE
            if any(k.lower() == b"content-type" and v.startswith(b"text/html") for k, v in kept):
                kept.append((b"content-security-policy", CONTENT_POLICY.encode()))
            message = {**message, "headers": kept}
        await send(message)

    return wrapped
