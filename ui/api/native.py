"""Our own API: jobs, their sound and progress, history. What page and scripts talk to."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pipeline import history
from pipeline.audio.encode import EXTENSIONS, MIME_TYPES, check_format
from pipeline.codes import CosydError
from pipeline.jobs import FINAL_STATES, JobState, estimate_seconds
from ui.answers import JsonResponse
from ui.api.http import (
    EVENT_STREAM,
    STREAM_HEADERS,
    StreamBody,
    body_limit,
    json_object,
    sse,
    visitor_language,
)
from ui.client import client_id
from ui.encoding import encoded
from ui.errors import error_response
from ui.jobs import Desk
from ui.renditions import Renditions
from ui.services import Services
from ui.views import job_view, recording_view

JOB_ID = re.compile(r"[0-9a-f]{16}")
EVENTS_EVERY_S = 0.2
ALIVE_AFTER_S = 15.0
Handler = Callable[[Request], Awaitable[Response]]


def guarded(handler: Handler) -> Handler:
    """Turns a CosydError into its answer."""

    async def run(request: Request) -> Response:
        try:
            return await handler(request)
        except CosydError as error:
            return error_response(error, visitor_language(request))

    return run


def _id(request: Request) -> str:
    """The job id of the path. Raises CosydError(not_found) for what cannot be one."""
    value = str(request.path_params["id"])
    if not JOB_ID.fullmatch(value):
        raise CosydError("not_found")
    return value


class LentFile(Response):
    """A file with Range that is given back when the last byte is out, or the client is gone."""

    def __init__(self, renditions: Renditions, job_id: str, final: Any, format: str, language: Any) -> None:
        super().__init__(None)
        self._lend = lambda: renditions.lend(job_id, final, format)
        self._name = f"cosyd-{job_id}{EXTENSIONS[format]}"
        self._type, self._language = MIME_TYPES[format], language

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        download = b"download=1" in scope["query_string"]
        try:
            async with self._lend() as path:
                answer = FileResponse(
                    path,
                    media_type=self._type,
                    filename=self._name,
                    content_disposition_type="attachment" if download else "inline",
                    headers={"Cache-Control": "no-cache"},
                )
                await answer(scope, receive, send)
        except CosydError as error:
            await error_response(error, self._language)(scope, receive, send)


def native_routes(services: Services, desk: Desk, renditions: Renditions) -> list[Route]:
    """The routes below /api that are about jobs and recordings."""

    async def create(request: Request) -> Response:
        limits = services.config.limits
        fields = await json_object(request, max_bytes=body_limit(limits.long_text_chars))
        fields.setdefault("source", "api")
        fields["owner"] = ""  # who the house is, a request does not say
        if not fields.get("client"):
            fields["client"] = client_id(request)
        page = fields["source"] == "page"
        checked = desk.check(fields, max_chars=limits.text_chars if page else limits.long_text_chars)
        if checked.format != "wav":
            check_format(checked.format)
        accepted = await desk.accept(checked, patience_s=services.config.patience.page_s)
        return JsonResponse(
            {
                "id": accepted.id,
                "voice": accepted.voice,
                "engine": accepted.engine,
                "seconds": estimate_seconds(checked.text, checked.speed),
            },
            status_code=202,
            headers={"Location": f"/api/jobs/{accepted.id}"},
        )

    async def show(request: Request) -> Response:
        view = await services.read(job_view, _id(request), visitor_language(request))
        if view is None:
            raise CosydError("not_found")
        return JsonResponse(view, headers={"Cache-Control": "no-cache"})

    async def cancel(request: Request) -> Response:
        job_id = _id(request)
        asked = await desk.cancel(job_id)
        view = await services.read(job_view, job_id, visitor_language(request))
        if view is None:
            raise CosydError("not_found")
        return JsonResponse({**view, "cancelled": asked})

    async def audio(request: Request) -> Response:
        job_id, language = _id(request), visitor_language(request)
        format_ = request.query_params.get("format", "wav").lower()
        check_format(format_)
        row = await services.read(_audio_row, job_id)
        if row is None:
            raise CosydError("not_found")
        state, created_at = row
        final = services.paths.final_audio(created_at, job_id)
        if state in FINAL_STATES:
            if state == JobState.DONE:
                return LentFile(renditions, job_id, final, format_, language)
            view = await services.read(job_view, job_id, language)
            raise CosydError(
                "not_found" if view is None else str((view["error"] or {}).get("code", "not_found"))
            )
        if request.method == "HEAD":
            return Response(None, media_type=MIME_TYPES[format_], headers=dict(STREAM_HEADERS))
        body = encoded(services, desk.pcm(job_id, created_at), format_, services.tag(job_id))
        return StreamBody(body, MIME_TYPES[format_], {"Accept-Ranges": "none"})

    async def events(request: Request) -> Response:
        job_id, language = _id(request), visitor_language(request)
        if await services.read(job_view, job_id, language) is None:
            raise CosydError("not_found")

        async def stream() -> AsyncIterator[bytes]:
            last: dict[str, Any] | None = None
            quiet = 0.0
            yield b"retry: 1000\n\n"
            while not services.draining:
                view = await services.read(job_view, job_id, language)
                if view is None:
                    return
                if view != last:
                    over = view["state"] in FINAL_STATES
                    yield sse(view, view["state"] if over else "progress")
                    if over:
                        return
                    last, quiet = view, 0.0
                elif (quiet := quiet + EVENTS_EVERY_S) > ALIVE_AFTER_S:
                    yield b": alive\n\n"
                    quiet = 0.0
                await asyncio.sleep(EVENTS_EVERY_S)

        return StreamBody(stream(), EVENT_STREAM)

    async def listing(request: Request) -> Response:
        query = request.query_params
        rows = await services.read(
            history.search,
            query.get("q", "")[:500],
            limit=_whole(query.get("limit"), 30, 200) + 1,
            before=_whole(query.get("before"), 0, 2**62) or None,
        )
        limit = _whole(query.get("limit"), 30, 200)
        language = visitor_language(request)
        return JsonResponse(
            {
                "recordings": [recording_view(row, language) for row in rows[:limit]],
                "next": rows[limit - 1].seq if len(rows) > limit else None,
            },
            headers={"Cache-Control": "no-cache"},
        )

    async def erase(request: Request) -> Response:
        if not await services.write(history.delete, services.paths, _id(request)):
            raise CosydError("not_found")
        return JsonResponse({"deleted": True})

    return [
        Route("/api/jobs", guarded(create), methods=["POST"]),
        Route("/api/jobs/{id}", guarded(show), methods=["GET"]),
        Route("/api/jobs/{id}", guarded(cancel), methods=["DELETE"]),
        Route("/api/jobs/{id}/audio", guarded(audio), methods=["GET"]),
        Route("/api/jobs/{id}/events", guarded(events), methods=["GET"]),
        Route("/api/history", guarded(listing), methods=["GET"]),
        Route("/api/history/{id}", guarded(erase), methods=["DELETE"]),
    ]


def _whole(text: str | None, default: int, most: int) -> int:
    """A number from a query string; `default` when absent. Raises CosydError(bad_value)."""
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise CosydError("bad_value", field="limit", reason="not_a_number", value=text[:80])
    return max(1, min(int(text), most))


def _audio_row(conn: sqlite3.Connection, job_id: str) -> tuple[JobState, str] | None:
    """(state, created_at) of a job; of its recording when retention has removed the job."""
    row = conn.execute("SELECT state, created_at FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        row = conn.execute(
            "SELECT status AS state, created_at FROM generations WHERE job_id = ?", (job_id,)
        ).fetchone()
    return None if row is None else (JobState(row["state"]), row["created_at"])
