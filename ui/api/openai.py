"""What OpenAI clients ask besides speech: models and voices, in the shapes that they read."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.codes import CosydError
from ui.answers import JsonResponse
from ui.api.native import guarded
from ui.api.speech import speech_route
from ui.api.speech_request import MODELS
from ui.jobs import Desk
from ui.services import Services

CREATED = 1_767_225_600  # 2026-01-01: clients want a number here, none uses it


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "cosyd"}


def openai_routes(services: Services, desk: Desk) -> list[Route]:
    """The routes below /v1."""

    async def models(request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [_model(name) for name in MODELS]})

    async def model(request: Request) -> Response:
        name = str(request.path_params["id"])
        if name not in MODELS:
            raise CosydError("not_found")
        return JsonResponse(_model(name))

    async def audio_models(request: Request) -> Response:
        found = [_model(name) for name in MODELS]
        return JsonResponse({"models": found, "object": "list", "data": found})

    async def voices(request: Request) -> Response:
        found = [{"id": v.id, "name": v.name} for v in services.voices]
        return JsonResponse({"voices": found, "object": "list"})

    return [
        Route("/v1/audio/speech", speech_route(services, desk), methods=["POST"]),
        Route("/v1/models", guarded(models), methods=["GET"]),
        Route("/v1/models/{id:path}", guarded(model), methods=["GET"]),
        Route("/v1/audio/models", guarded(audio_models), methods=["GET"]),
        Route("/v1/audio/voices", guarded(voices), methods=["GET"]),
    ]
