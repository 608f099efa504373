"""Small HTTP things every route needs: a JSON body with a limit, the visitor's language, event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pipeline.codes import CosydError
from pipeline.messages import Language
from ui.answers import json_bytes
from ui.language import language_of

STREAM_HEADERS: Mapping[str, str] = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""A proxy must neither keep nor collect what is streamed."""

EVENT_STREAM = "text/event-stream"
ALIVE_EVERY_S = 15.0


def visitor_language(request: Request) -> Language:
    """zh or en, for the messages of this request."""
    return language_of(request.url.query, request.headers)


async def json_object(request: Request, *, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. Raises CosydError: `bad_value(not_json)`, or `text_too_long` for a huge one.

    NaN, Infinity and numbers beyond a double are no JSON. The Content-Type is not looked at: clients lie.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > max_bytes:
                raise CosydError("text_too_long", length=len(body), limit=max_bytes)
    except ClientDisconnect:
        raise CosydError("bad_value", field="body", reason="not_json") from None
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise CosydError("bad_value", field="body", reason="not_json") from None
    if not isinstance(value, dict):
        raise CosydError("bad_value", field="body", reason="not_json")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(name)


def body_limit(characters: int) -> int:
    """Bytes that a JSON body with `characters` of text may have: each may be a \\u escape pair."""
    return characters * 12 + 64 * 1024


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamBody(Response):
    """A body of unknown length that can break off, and notices at once when the client leaves.

    Starlette's own notices only when it sends; here the wait for the next piece ends too, so that the work
    can be stopped. `gone` tells afterwards whether the client left before the end. When the source raises
    CosydError the connection is closed without a proper end, which HTTP clients report as a broken answer.
    """

    def __init__(
        self, source: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(None, media_type=media_type, headers=dict(headers or {}) | dict(STREAM_HEADERS))
        del self.headers["content-length"]
        self._source = source
        self.gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(until_disconnect(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            self.gone = not sending.done()
        finally:
            for task in (leaving, sending):
                task.cancel()
            results = await asyncio.gather(leaving, sending, return_exceptions=True)
        if isinstance(results[1], OSError):
            self.gone = True
        elif isinstance(results[1], Exception) and not isinstance(results[1], CosydError):
            raise results[1]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for piece in self._source:
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            if hasattr(self._source, "aclose"):
                await self._source.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return name.encode() + b"data: " + json_bytes(data) + b"\n\n"
