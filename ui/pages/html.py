"""Takes out of Gradio's HTML what points elsewhere, and says which language it is in.

Gradio's template names its own web site and a picture on GitHub in meta elements. No browser fetches them,
but a page of ours has no business naming them; `tests/browser` holds that nothing leaves the host.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.messages import Language

_META = re.compile(rb"<meta\s+(?:property|name)=\"(?:og|twitter):[^>]*>", re.DOTALL)
_PRECONNECT = re.compile(rb"<link[^>]+href=\"https?://[^>]*>", re.DOTALL)
_LANG = re.compile(rb"<html\s+lang=\"en\"", re.DOTALL)


def clean_page(html: bytes, language: Language) -> bytes:
    """The page without elements that name other hosts."""
    html = _PRECONNECT.sub(b"", _META.sub(b"", html))
    return _LANG.sub(b'<html lang="zh-CN"' if language == "zh" else b'<html lang="en"', html, count=1)


class PageFilter:
    """ASGI middleware for GET / : collects the page and cleans it. Other answers pass as they come."""

    def __init__(self, app: ASGIApp, language: Language) -> None:
        self._app, self._language = app, language

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ("", "/") or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        # Cleaning works on text, so the page must come uncompressed; it is 60 KB on a LAN.
        headers = [(k, v) for k, v in scope["headers"] if k.lower() != b"accept-encoding"]
        start: Message = {}
        body = bytearray()

        async def collect(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            page = clean_page(bytes(body), self._language)
            kept = [
                (k, v) for k, v in start["headers"] if k.lower() not in (b"content-length", b"cache-control")
            ]
            kept += [
                (b"content-length", str(len(page)).encode()),
                (b"cache-control", b"no-cache"),
                (b"vary", b"Accept-Language, Cookie"),
            ]
            await send({**start, "headers": kept})
            await send({"type": "http.response.body", "body": page})

        await self._app({**scope, "headers": headers}, receive, collect)
