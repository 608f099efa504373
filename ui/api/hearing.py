"""What is said in a recording, written down for correction: POST /api/voices/transcribe."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.audio.mixdown import RATE
from pipeline.audio.recording import read_recording
from pipeline.codes import CosydError
from pipeline.hearing.child import hear_in_child
from pipeline.hearing.model import require_hearing
from pipeline.voices.registry import TRANSCRIPT_CHARS, one_line
from pipeline.voices.uploads import load_upload
from ui.answers import JsonResponse
from ui.api.clips import parse_span
from ui.api.forms import upload_form
from ui.api.native import guarded
from ui.api.upload import read_upload
from ui.services import Services


def hearing_routes(services: Services) -> list[Route]:
    """The one route."""

    async def transcribe(request: Request) -> Response:
        folder = require_hearing(services.config, services.paths)
        async with upload_form(request, services.config.limits.upload_bytes) as form:
            language = one_line(form.get("language"), 20, "language") or "auto"
            span, known = parse_span(form), form.get("upload")
            if isinstance(known, str) and known:
                recording = await services.in_audio_thread(lambda: load_upload(services.paths, known))
            else:
                recording = await read_upload(services, form, read_recording)
        start, end = span or (0.0, services.config.reference_audio_max_s)
        audio = recording.audio[max(0, int(start * RATE)) : max(0, int(end * RATE))]
        if not len(audio):
            raise CosydError("bad_audio", reason="empty")
        heard = await services.in_audio_thread(lambda: hear_in_child(folder, audio, RATE, language))
        return JsonResponse({"text": heard.text[:TRANSCRIPT_CHARS], "language": heard.language})

    return [Route("/api/voices/transcribe", guarded(transcribe), methods=["POST"])]
