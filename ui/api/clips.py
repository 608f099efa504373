"""Recordings before they are voices: looked at, listened to, a part of them chosen; kept for a day."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.audio.recording import Recording, read_recording
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.voices.reference import Clip, examine, make_clip
from pipeline.voices.registry import TRANSCRIPT_CHARS, NewVoice, one_line
from pipeline.voices.uploads import KEPT_S, keep_upload, load_upload, remove_upload, upload_audio
from pipeline.voices.verdict import report_view
from ui.answers import JsonResponse
from ui.api.forms import upload_form
from ui.api.http import visitor_language
from ui.api.native import guarded
from ui.api.upload import read_upload
from ui.services import Services

SPAN_FIELDS = ("start", "end")


def clip_routes(services: Services) -> list[Route]:
    """The routes of /api/voices/check and below /api/uploads."""

    async def check(request: Request) -> Response:
        async with upload_form(request, services.config.limits.upload_bytes) as form:
            words = one_line(form.get("transcript"), TRANSCRIPT_CHARS, "transcript") or None
            span = parse_span(form)
            kept, recording = await _recording(services, form)
        report = await services.in_audio_thread(
            lambda: examine(
                recording,
                max_seconds=services.config.reference_audio_max_s,
                transcript=words,
                span=span,
            )
        )
        now = services.clock.wall()
        upload: dict[str, Any] = {"upload": kept}
        if kept is None and (report.refusal is None or report.suggestions):
            kept = await services.in_audio_thread(lambda: keep_upload(services.paths, recording, now))
            upload = {"upload": kept, "until": utc_text(now + KEPT_S)}
        return JsonResponse(report_view(report, visitor_language(request)) | upload)

    async def listen(request: Request) -> Response:
        file = upload_audio(services.paths, str(request.path_params["id"]))
        return FileResponse(file, media_type="audio/flac", headers={"Cache-Control": "private, no-store"})

    async def forget(request: Request) -> Response:
        upload = str(request.path_params["id"])
        if not await services.in_audio_thread(lambda: remove_upload(services.paths, upload)):
            raise CosydError("not_found")
        return JsonResponse({"deleted": True})

    return [
        Route("/api/voices/check", guarded(check), methods=["POST"]),
        Route("/api/uploads/{id}/audio", guarded(listen), methods=["GET"]),
        Route("/api/uploads/{id}", guarded(forget), methods=["DELETE"]),
    ]


async def clip_of(services: Services, form: FormData, new: NewVoice) -> Clip:
    """The clip that a form means: a file, or an upload that was looked at; `start` and `end` where a part was
    chosen. Raises CosydError(bad_audio | bad_value | not_found | storage_full)."""
    span = parse_span(form)
    _, recording = await _recording(services, form)
    return await services.in_audio_thread(
        lambda: make_clip(
            recording,
            max_seconds=services.config.reference_audio_max_s,
            transcript=new.transcript,
            span=span,
        )
    )


async def _recording(services: Services, form: FormData) -> tuple[str | None, Recording]:
    """The recording of a form, and its id when it was uploaded before."""
    known = form.get("upload")
    if isinstance(known, str) and known:
        return known, await services.in_audio_thread(lambda: load_upload(services.paths, known))
    return None, await read_upload(services, form, read_recording)


def parse_span(form: Mapping[str, Any]) -> tuple[float, float] | None:
    """`start` and `end` in seconds, both or none. Raises CosydError(bad_value)."""
    given = [form.get(name) for name in SPAN_FIELDS]
    if not any(given):
        return None
    found = []
    for name, value in zip(SPAN_FIELDS, given, strict=True):
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            raise CosydError("bad_value", field=name, reason="not_a_number", value=str(value or "")[:80])
        found.append(seconds)
    return found[0], found[1]
