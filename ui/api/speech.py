"""POST /v1/audio/speech: OpenAI's contract on top of a job (INTERFACES 1).

Everything is checked and the first sound is there before the status line goes out, since it cannot be taken
back. After that a failure breaks the connection (audio) or says so in an event (sse). A client that leaves is
noticed at once, also while it waits.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pipeline.acceptance import Accepted, job_progress
from pipeline.audio.encode import MIME_TYPES, check_format
from pipeline.audio.tags import flac_bytes
from pipeline.codes import CosydError
from pipeline.jobs import JobState
from pipeline.messages import Language
from ui.api.http import (
    EVENT_STREAM,
    STREAM_HEADERS,
    body_limit,
    json_object,
    sse,
    until_disconnect,
    visitor_language,
)
from ui.api.speech_request import SpeechRequest, translate
from ui.client import client_id
from ui.encoding import encoded, with_exact_sizes
from ui.errors import error_body, error_response
from ui.jobs import Desk
from ui.pump import Pump
from ui.services import Services

EXACT = frozenset({"wav", "flac"})
EXACT_GRACE_S = 0.25
"""These two are held back so long for their end: then the header tells the true length to strict readers."""
WHOLE_WAIT_S = 5.0
WHOLE_MAX_BYTES = 16 * 1024 * 1024
"""A recording that is over is read to its end before the first byte, if it is not larger or slower."""


class SpeechAnswer(Response):
    """The answer to one accepted job, from waiting for the first sound to the last byte."""

    def __init__(
        self, services: Services, desk: Desk, accepted: Accepted, wanted: SpeechRequest, language: Language
    ) -> None:
        super().__init__(None)
        self._services, self._desk, self._job = services, desk, accepted
        self._wanted, self._language = wanted, language

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(until_disconnect(receive))
        answering = asyncio.ensure_future(self._answer(scope, receive, send))
        try:
            await asyncio.wait({leaving, answering}, return_when=asyncio.FIRST_COMPLETED)
            gone = not answering.done()
        except asyncio.CancelledError:
            gone = True
            raise
        finally:
            leaving.cancel()
            answering.cancel()
            results = await asyncio.gather(leaving, answering, return_exceptions=True)
            if gone or isinstance(results[1], OSError):
                self._desk.abandoned(self._job.id)
        if isinstance(results[1], Exception) and not isinstance(results[1], OSError | CosydError):
            raise results[1]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        pcm = self._desk.pcm(self._job.id, self._job.created_at)
        made = encoded(self._services, pcm, self._wanted.format, self._services.tag(self._job.id))
        async with Pump(made) as pieces:
            try:
                head, ended = await self._head(pieces)
            except CosydError as error:
                await error_response(error, self._language)(scope, receive, send)
                return
            if self._wanted.sse:
                await self._send(send, self._events(head, pieces), EVENT_STREAM, None)
            elif ended:
                await self._send(send, _one(head), MIME_TYPES[self._wanted.format], len(head))
            else:
                await self._send(send, _chain(head, pieces), MIME_TYPES[self._wanted.format], None)

    async def _head(self, pieces: Pump) -> tuple[bytes, bool]:
        """The first sound, or the whole of a short job that is over already; and whether it is the whole."""
        try:
            head = await anext(pieces)
        except StopAsyncIteration:
            raise CosydError("internal", reason="no_audio") from None
        if self._wanted.sse:
            return head, False
        patient = self._wanted.format in EXACT
        over = (await self._services.read(job_progress, self._job.id)).state == JobState.DONE
        if not patient and not over:
            return head, False
        clock = self._services.clock.monotonic
        end = clock() + (WHOLE_WAIT_S if over else EXACT_GRACE_S)
        whole = bytearray(head)
        while len(whole) < WHOLE_MAX_BYTES and (left := end - clock()) > 0:
            try:
                whole += await pieces.get(left) or b""
            except StopAsyncIteration:
                return await self._exact(bytes(whole)), True
        return bytes(whole), False

    async def _exact(self, whole: bytes) -> bytes:
        """The same recording with a header that knows its length."""
        if self._wanted.format == "wav":
            return with_exact_sizes(whole)
        final = self._services.paths.final_audio(self._job.created_at, self._job.id)
        if self._wanted.format == "flac" and final.exists():
            tag = self._services.tag(self._job.id)
            return await self._services.in_audio_thread(lambda: flac_bytes(final, tag))
        return whole

    async def _events(self, head: bytes, pieces: Pump) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for piece in _chain(head, pieces):
                size += len(piece)
                data = base64.b64encode(piece).decode("ascii")
                yield sse({"type": "speech.audio.delta", "audio": data}, "speech.audio.delta")
        except CosydError as error:
            yield sse({"type": "error", **error_body(error, self._language)}, "error")
            return
        said = len(str(self._wanted.fields["text"]))
        # OpenAI counts tokens; characters in and kilobytes out are the nearest we can say honestly.
        usage = {"input_tokens": said, "output_tokens": size // 1000, "total_tokens": said + size // 1000}
        yield sse({"type": "speech.audio.done", "usage": usage}, "speech.audio.done")

    async def _send(
        self, send: Send, body: AsyncIterator[bytes], media_type: str, length: int | None
    ) -> None:
        self.headers["content-type"] = media_type
        for name, value in STREAM_HEADERS.items():
            self.headers[name] = value
        self.headers["x-cosyd-job"] = self._job.id
        self.headers["x-cosyd-voice"] = self._job.voice
        self.headers["x-sample-rate"] = "24000"
        del self.headers["content-length"]
        if length is not None:
            self.headers["content-length"] = str(length)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


async def _chain(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in rest:
        yield piece


def speech_route(services: Services, desk: Desk) -> Any:
    """The endpoint function."""

    async def speech(request: Request) -> Response:
        language = visitor_language(request)
        limits = services.config.limits
        try:
            wanted = translate(await json_object(request, max_bytes=body_limit(limits.text_chars)))
            checked = desk.check({**wanted.fields, "client": client_id(request)}, max_chars=limits.text_chars)
            check_format(wanted.format)
            accepted = await desk.accept(checked, patience_s=services.config.patience.openai_s)
        except CosydError as error:
            return error_response(error, language)
        return SpeechAnswer(services, desk, accepted, wanted, language)

    return speech
