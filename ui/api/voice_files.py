"""Voices over HTTP as files and as a person's belongings: export, import, "forget this person"."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import tempfile
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.audio.files import disk_errors
from pipeline.codes import CosydError
from pipeline.jobs import VOICE_ID
from pipeline.voices.abilities import voice_modes
from pipeline.voices.archive import MAX_BYTES, read_archive
from pipeline.voices.forget import belongings, forget_person
from pipeline.voices.sharing import export_voice, import_voice, said_there
from ui.answers import JsonResponse
from ui.api.forms import FORM_BYTES, upload_form
from ui.api.http import json_object, visitor_language
from ui.api.native import guarded
from ui.api.upload import read_upload
from ui.api.voices import cloned_id, model_trouble
from ui.services import Services
from ui.views import voice_notice, voice_view

SAID = ("consent", "person", "name")


def voice_file_routes(services: Services) -> list[Route]:
    """More routes below /api/voices."""

    async def export(request: Request) -> Response:
        voice = cloned_id(services, request)
        folder = Path(tempfile.mkdtemp(prefix="export-", dir=services.scratch))

        def write(conn: sqlite3.Connection) -> str:
            with disk_errors(), (folder / "voice").open("wb") as out:
                return export_voice(conn, services.paths, voice, out)

        try:
            name = await services.read(write)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return FileResponse(
            folder / "voice",
            media_type="application/zip",
            filename=name,
            headers={"Cache-Control": "private, no-cache"},
            background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
        )

    async def take_in(request: Request) -> Response:
        async with upload_form(request, min(MAX_BYTES, services.config.limits.upload_bytes)) as form:
            said = {name: form.get(name) for name in SAID}
            if not isinstance(form.get("archive"), UploadFile):
                raise CosydError("bad_value", field="archive", reason="zip_not_one")
            archive = await read_upload(services, form, read_archive, "archive")
        limit, now = services.config.reference_audio_max_s, services.clock.wall()
        voice = await services.write(import_voice, services.paths, archive, said, now, max_seconds=limit)
        able = model_trouble(services) is None
        view = voice_view(voice, voice_modes(voice, services.state, cloning=able)) | {
            "notice": voice_notice(voice, visitor_language(request)),
            "said": said_there(archive.about),
        }
        return JsonResponse(view, status_code=201, headers={"Location": f"/api/voices/{voice.id}/preview"})

    async def show(request: Request) -> Response:
        found = await services.read(belongings, services.paths, _voice_id(request))
        return JsonResponse(dataclasses.asdict(found), headers={"Cache-Control": "no-cache"})

    async def forget(request: Request) -> Response:
        voice = _voice_id(request)
        fields = await json_object(request, max_bytes=FORM_BYTES)
        if unknown := sorted(set(fields) - {"recordings"}):
            raise CosydError("bad_value", field=unknown[0][:80], reason="unknown_key", allowed="recordings")
        wanted = fields.get("recordings", False)
        if not isinstance(wanted, bool):
            raise CosydError(
                "bad_value",
                field="recordings",
                reason="not_one_of",
                value=str(wanted)[:80],
                allowed="true, false",
            )
        now = services.clock.wall()
        gone = await services.write(forget_person, services.paths, voice, now, recordings=wanted)
        kept = services.config.schedule.backups_kept
        return JsonResponse(dataclasses.asdict(gone) | {"backups_kept": kept})

    return [
        Route("/api/voices/import", guarded(take_in), methods=["POST"]),
        Route("/api/voices/{id}/export", guarded(export), methods=["GET"]),
        Route("/api/voices/{id}/belongings", guarded(show), methods=["GET"]),
        Route("/api/voices/{id}/forget", guarded(forget), methods=["POST"]),
    ]


def _voice_id(request: Request) -> str:
    """An id in the path, also of a voice that was deleted. Raises CosydError(not_found)."""
    wanted: str = request.path_params["id"]
    if not VOICE_ID.fullmatch(wanted):
        raise CosydError("not_found")
    return wanted
