"""Voices over HTTP: list, add from an upload, hear the clip, rename, delete; styles; voice conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.codes import CosydError
from pipeline.messages import Language, render
from pipeline.model_files import require_model
from pipeline.voices.abilities import voice_modes
from pipeline.voices.registry import (
    add_voice,
    change_voice,
    clip_path,
    parse_name,
    parse_new_voice,
    parse_tags,
    remove_voice,
    voice_facts,
)
from pipeline.voices.source import read_source
from pipeline.voices.styles import DIALECTS, STYLES
from pipeline.voices.verdict import report_view
from ui.answers import JsonResponse
from ui.api.clips import clip_of, clip_routes
from ui.api.forms import FORM_BYTES, upload_form
from ui.api.http import json_object, visitor_language
from ui.api.native import guarded
from ui.api.upload import file_name, read_upload
from ui.client import client_id
from ui.jobs import Desk
from ui.services import Services
from ui.views import cloning_view, voice_notice, voice_view

FIELDS = ("name", "consent", "person", "transcript", "language")
CONVERT_FIELDS = ("voice", "text", "speed", "seed", "source", "client")


def voice_routes(services: Services, desk: Desk) -> list[Route]:
    """The routes below /api/voices, /api/styles and /api/convert."""

    async def listing(request: Request) -> Response:
        trouble = model_trouble(services)
        try:
            facts = await services.read(voice_facts)
        except CosydError:
            facts = {}
        found = [
            voice_view(
                v,
                voice_modes(v, services.state, cloning=trouble is None),
                {} if v.builtin else facts.get(v.id, {}),
            )
            for v in services.voices
        ]
        return JsonResponse(
            {
                "voices": found,
                "default": services.config.web.default_voice,
                "cloning": cloning_view(trouble, visitor_language(request)),
            },
            headers={"Cache-Control": "no-cache"},
        )

    async def create(request: Request) -> Response:
        require_model(services.paths.root)
        async with upload_form(request, services.config.limits.upload_bytes) as form:
            fields: dict[str, Any] = {name: form.get(name) for name in FIELDS}
            source = "recording" if form.get("source") == "recording" else "upload"
            new = parse_new_voice(fields, services.clock.wall(), source=source)
            clip = await clip_of(services, form, new)
        now = services.clock.wall()
        voice = await services.write(add_voice, services.paths, new, clip.audio, clip.rate, now)
        language = visitor_language(request)
        modes = voice_modes(voice, services.state, cloning=True)
        view = voice_view(voice, modes) | {
            "notice": voice_notice(voice, language),
            "verdict": report_view(clip.report, language),
        }
        return JsonResponse(view, status_code=201, headers={"Location": f"/api/voices/{voice.id}/preview"})

    async def preview(request: Request) -> Response:
        voice = cloned_id(services, request)
        path = clip_path(services.paths, voice)
        if not path.is_file():
            raise CosydError("not_found")
        return FileResponse(path, media_type="audio/flac", headers={"Cache-Control": "private, no-cache"})

    async def change(request: Request) -> Response:
        voice = cloned_id(services, request)
        fields = await json_object(request, max_bytes=FORM_BYTES)
        if unknown := sorted(set(fields) - {"name", "tags"}):
            raise CosydError("bad_value", field=unknown[0][:80], reason="unknown_key", allowed="name, tags")
        wanted: dict[str, object] = {"name": parse_name(fields["name"])} if "name" in fields else {}
        wanted |= {"tags": parse_tags(fields["tags"])} if "tags" in fields else {}
        if not wanted:
            raise CosydError("bad_value", field="name", reason="not_text")
        if not await services.write(change_voice, voice, **wanted):
            raise CosydError("not_found")
        found = next(v for v in services.voices if v.id == voice)
        return JsonResponse(voice_view(found, voice_modes(found, services.state, cloning=True)))

    async def erase(request: Request) -> Response:
        voice = cloned_id(services, request)
        if not await services.write(remove_voice, services.paths, voice, services.clock.wall()):
            raise CosydError("not_found")
        return JsonResponse({"deleted": True})

    async def styles(request: Request) -> Response:
        return JsonResponse(styles_view(visitor_language(request)))

    async def convert(request: Request) -> Response:
        async with upload_form(request, services.config.limits.upload_bytes) as form:
            fields = conversion_fields({name: form.get(name) for name in CONVERT_FIELDS}, file_name(form))
            fields["client"] = fields["client"] or client_id(request)
            checked = desk.check(fields, max_chars=services.config.limits.text_chars)
            source = await read_upload(services, form, read_source)
        accepted = await desk.accept(checked, patience_s=services.config.patience.page_s, source=source)
        seconds = len(source[0]) / source[1] / checked.speed
        return JsonResponse(
            {"id": accepted.id, "voice": accepted.voice, "engine": accepted.engine, "seconds": seconds},
            status_code=202,
            headers={"Location": f"/api/jobs/{accepted.id}"},
        )

    return [
        Route("/api/voices", guarded(listing), methods=["GET"]),
        Route("/api/voices", guarded(create), methods=["POST"]),
        *clip_routes(services),
        Route("/api/voices/{id}", guarded(change), methods=["PATCH"]),
        Route("/api/voices/{id}", guarded(erase), methods=["DELETE"]),
        Route("/api/voices/{id}/preview", guarded(preview), methods=["GET"]),
        Route("/api/styles", guarded(styles), methods=["GET"]),
        Route("/api/convert", guarded(convert), methods=["POST"]),
    ]


def model_trouble(services: Services) -> CosydError | None:
    """Why no voice can be cloned here; None when it can."""
    try:
        require_model(services.paths.root)
    except CosydError as error:
        return error
    return None


def styles_view(language: Language) -> dict[str, Any]:
    """Ready-made styles and dialects: id, name for people, and the instruction that is sent."""

    def named(kind: str, found: Mapping[str, str]) -> list[dict[str, str]]:
        return [
            {"id": k, "name": render(f"page.{kind}.{k}", language), "instruct": v} for k, v in found.items()
        ]

    return {"styles": named("style", STYLES), "dialects": named("dialect", DIALECTS)}


def conversion_fields(form: Mapping[str, Any], file_name: str) -> dict[str, Any]:
    """The fields of a conversion's job from a form's texts. Raises CosydError(bad_value)."""
    fields: dict[str, Any] = {"mode": "convert", "voice": form["voice"] or "", "client": form["client"] or ""}
    fields["text"] = form["text"] or file_name or "audio"
    fields["source"] = "page" if form["source"] == "page" else "api"
    for name, kind in (("speed", float), ("seed", int)):
        if not form[name]:
            continue
        try:
            fields[name] = kind(str(form[name]))
        except ValueError:
            raise CosydError(
                "bad_value", field=name, reason="not_a_number", value=str(form[name])[:80]
            ) from None
    return fields


def cloned_id(services: Services, request: Request) -> str:
    """The id of a cloned voice in the path. Raises CosydError(not_found)."""
    wanted = str(request.path_params["id"])
    if not any(voice.id == wanted and not voice.builtin for voice in services.voices):
        raise CosydError("not_found")
    return wanted
