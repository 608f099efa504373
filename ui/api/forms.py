"""A form with one file, read within bounds: for routes that take uploads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from pipeline.codes import CosydError

FORM_BYTES = 64 * 1024
"""What the fields beside the file may take."""


def _bounded(receive: Receive, limit: int) -> Receive:
    """`receive` that raises CosydError(bad_audio) once more than `limit` bytes of body came."""
    seen = 0

    async def receive_some() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise CosydError("bad_audio", reason="too_large", limit=limit)
        return message

    return receive_some


@contextlib.asynccontextmanager
async def upload_form(request: Request, limit: int) -> AsyncIterator[FormData]:
    """The form of a request with one file of at most `limit` bytes. Raises CosydError:
    `bad_audio(too_large)`, `bad_value(not_form)`."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit + FORM_BYTES:
        raise CosydError("bad_audio", reason="too_large", limit=limit)
    bounded = Request(request.scope, _bounded(request.receive, limit + FORM_BYTES))
    try:
        async with bounded.form(max_files=1, max_fields=16, max_part_size=FORM_BYTES) as form:
            yield form
    except (MultiPartException, HTTPException, ClientDisconnect):
        raise CosydError("bad_value", field="body", reason="not_form") from None
