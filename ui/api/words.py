"""The pronunciation dictionary over HTTP, and the subtitles of a recording."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.codes import CosydError
from pipeline.pronunciations import add_entry, list_entries, parse_entry, remove_entry
from pipeline.subtitles import FORMATS, subtitles
from ui.answers import JsonResponse
from ui.api.http import json_object
from ui.api.native import JOB_ID, guarded
from ui.services import Services

BODY_BYTES = 8 * 1024
FIELDS = ("pattern", "replacement", "language")


def word_routes(services: Services) -> list[Route]:
    """The routes below /api about words."""

    async def listing(request: Request) -> Response:
        entries = await services.read(list_entries)
        return JsonResponse(
            {"pronunciations": [dataclasses.asdict(entry) for entry in entries]},
            headers={"Cache-Control": "no-cache"},
        )

    async def add(request: Request) -> Response:
        fields = await json_object(request, max_bytes=BODY_BYTES)
        if unknown := sorted(set(fields) - set(FIELDS)):
            raise CosydError(
                "bad_value", field=str(unknown[0])[:80], reason="unknown_key", allowed=", ".join(FIELDS)
            )
        entry = parse_entry(fields.get("pattern"), fields.get("replacement"), fields.get("language", ""))
        added = await services.write(add_entry, entry)
        return JsonResponse(dataclasses.asdict(added), status_code=201)

    async def remove(request: Request) -> Response:
        if not await services.write(remove_entry, int(request.path_params["id"])):
            raise CosydError("not_found")
        return JsonResponse({"deleted": True})

    async def captions(request: Request) -> Response:
        job_id, format_ = str(request.path_params["id"]), request.query_params.get("format", "srt").lower()
        if format_ not in FORMATS:
            raise CosydError("unknown_format", value=format_[:80], allowed=", ".join(FORMATS))
        if not JOB_ID.fullmatch(job_id):
            raise CosydError("not_found")
        body = await services.read(subtitles, job_id, format_)
        return Response(
            body,
            media_type=FORMATS[format_][0],
            headers={
                "Content-Disposition": f'attachment; filename="cosyd-{job_id}.{format_}"',
                "Cache-Control": "no-cache",
            },
        )

    return [
        Route("/api/pronunciations", guarded(listing), methods=["GET"]),
        Route("/api/pronunciations", guarded(add), methods=["POST"]),
        Route("/api/pronunciations/{id:int}", guarded(remove), methods=["DELETE"]),
        Route("/api/history/{id}/subtitles", guarded(captions), methods=["GET"]),
    ]
