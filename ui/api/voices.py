"""Voices over HTTP: list, add from an upload, hear the clip, delete."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive

from pipeline.audio.files import disk_errors
from pipeline.codes import CosydError
from pipeline.model_files import require_model
from pipeline.voices.reference import F32, read_reference
from pipeline.voices.registry import NewVoice, add_voice, clip_path, parse_new_voice, remove_voice
from ui.api.http import visitor_language
from ui.api.native import guarded
from ui.services import Services
from ui.views import voice_notice, voice_view

FORM_BYTES = 64 * 1024
"""What the fields beside the audio may take."""

FIELDS = ("name", "consent", "person", "transcript", "language")


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


def voice_routes(services: Services) -> list[Route]:
    """The routes below /api/voices."""

    async def listing(request: Request) -> Response:
        default = services.config.web.default_voice
        return JSONResponse({"voices": [voice_view(v) for v in services.voices], "default": default})

    async def create(request: Request) -> Response:
        require_model(services.paths.root)
        limit = services.config.limits.upload_bytes
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > limit + FORM_BYTES:
            raise CosydError("bad_audio", reason="too_large", limit=limit)
        bounded = Request(request.scope, _bounded(request.receive, limit + FORM_BYTES))
        try:
            async with bounded.form(max_files=1, max_fields=16, max_part_size=FORM_BYTES) as form:
                upload = form.get("audio")
                fields: dict[str, Any] = {name: form.get(name) for name in FIELDS}
                new = parse_new_voice(fields, services.clock.wall())
                if not isinstance(upload, UploadFile):
                    raise CosydError("bad_audio", reason="empty")
                audio, rate = await services.in_audio_thread(lambda: _decode(services, new, upload))
        except (MultiPartException, HTTPException, ClientDisconnect):
            raise CosydError("bad_value", field="body", reason="not_form") from None
        now = services.clock.wall()
        voice = await services.write(add_voice, services.paths, new, audio, rate, now)
        view = voice_view(voice) | {"notice": voice_notice(voice, visitor_language(request))}
        return JSONResponse(view, status_code=201, headers={"Location": f"/api/voices/{voice.id}/preview"})

    async def preview(request: Request) -> Response:
        voice = _cloned(services, request)
        path = clip_path(services.paths, voice)
        if not path.is_file():
            raise CosydError("not_found")
        return FileResponse(path, media_type="audio/flac", headers={"Cache-Control": "private, no-cache"})

    async def erase(request: Request) -> Response:
        voice = _cloned(services, request)
        if not await services.write(remove_voice, services.paths, voice, services.clock.wall()):
            raise CosydError("not_found")
        return JSONResponse({"deleted": True})

    return [
        Route("/api/voices", guarded(listing), methods=["GET"]),
        Route("/api/voices", guarded(create), methods=["POST"]),
        Route("/api/voices/{id}", guarded(erase), methods=["DELETE"]),
        Route("/api/voices/{id}/preview", guarded(preview), methods=["GET"]),
    ]


def _cloned(services: Services, request: Request) -> str:
    """The id of a cloned voice in the path. Raises CosydError(not_found)."""
    wanted = str(request.path_params["id"])
    if not any(voice.id == wanted and not voice.builtin for voice in services.voices):
        raise CosydError("not_found")
    return wanted


def _decode(services: Services, new: NewVoice, upload: UploadFile) -> tuple[F32, int]:
    """The clip, decoded in a private folder that is gone afterwards; in a thread."""
    with tempfile.TemporaryDirectory(prefix="upload-", dir=services.paths.tmp) as folder:
        path = Path(folder) / "audio"
        with disk_errors(), path.open("wb") as out:
            shutil.copyfileobj(upload.file, out)
        return read_reference(
            path,
            max_seconds=services.config.reference_audio_max_s,
            with_transcript=new.transcript is not None,
        )
