"""The state of the house: probes, the health strip, what happened, and the two buttons that act.

Buttons go through the link to the supervisor, which alone acts on processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline import queue
from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.events import recent_events
from pipeline.messages import Language, catalogue, error_text, render, word
from ui.answers import JsonResponse
from ui.api.http import EVENT_STREAM, StreamBody, sse, visitor_language
from ui.api.native import guarded
from ui.services import Services
from ui.views import event_view

UNABLE = frozenset({"failed", "backoff", "waiting_memory"})
"""Engine states in which a request would not be spoken now. `absent` is not one: it loads when asked."""
TRIM_WAIT_S = 20.0
RESTART_WAIT_S = 10.0
STATE_EVERY_S = 1.0
SHOWN_EVENTS = 12


def can_speak(state: Mapping[str, Any]) -> bool:
    """Whether some engine could speak now; False while nothing is known."""
    engines = state.get("engines")
    if not isinstance(engines, Mapping):
        return False
    return any(isinstance(e, Mapping) and e.get("state") not in UNABLE for e in engines.values())


def card_view(state: object, language: Language) -> dict[str, str] | None:
    """What is the matter with the card, shortly and with its cure; None when nothing is, or is known."""
    key = f"gpu.{state}"
    if key not in catalogue("en"):
        return None
    return {"word": word("state.gpu", str(state), language), "message": render(key, language)}


def queue_view(stats: Mapping[str, queue.EngineQueue]) -> dict[str, Any]:
    """All engines together."""
    return {
        "queued": sum(s.queued for s in stats.values()),
        "running": sum(s.running for s in stats.values()),
        "seconds": round(sum(s.seconds for s in stats.values()), 1),
    }


def storage_view(told: Any, met: CosydError | None, language: Language) -> dict[str, Any] | None:
    """Trouble with the database, by the supervisor or, sooner, met here; a lock is none."""
    if isinstance(told, Mapping):
        code, params = str(told.get("code")), told.get("params") or {}
    elif met is not None and met.code != "storage_busy":
        code, params = met.code, met.params
    else:
        return None
    return {"code": code, "message": error_text(code, language, params)}


def house_routes(services: Services) -> list[Route]:
    """/healthz, /readyz, /api/state, /api/events and the actions."""

    async def healthz(request: Request) -> Response:
        return JsonResponse({"status": "ok"}, headers={"Cache-Control": "no-cache"})

    async def readyz(request: Request) -> Response:
        ready = can_speak(services.state) and not services.draining
        return JsonResponse(
            {"status": "ready" if ready else "not_ready"},
            status_code=200 if ready else 503,
            headers={"Cache-Control": "no-cache", **({} if ready else {"Retry-After": "2"})},
        )

    async def view(language: Any) -> dict[str, Any]:
        stats: Mapping[str, queue.EngineQueue] | None = None
        trouble: CosydError | None = None
        try:
            stats = await services.read(queue.queue_stats, services.clock.wall())
        except CosydError as error:
            trouble = error  # the state is looked at when something is wrong: what is known is told
        engines = {}
        for name, raw in (services.state.get("engines") or {}).items():
            engine = dict(raw)
            if engine.get("code"):
                engine["message"] = error_text(str(engine["code"]), language, engine.get("params") or {})
            engines[name] = engine
        return {
            **services.state,
            "engines": engines,
            "known": bool(services.state),
            "ready": can_speak(services.state),
            "gpu": card_view(services.state.get("gpu_state"), language),
            "queue": None if stats is None else queue_view(stats),
            "storage": storage_view(services.state.get("storage"), trouble, language),
        }

    async def state(request: Request) -> Response:
        return JsonResponse(await view(visitor_language(request)), headers={"Cache-Control": "no-cache"})

    async def state_events(request: Request) -> Response:
        language = visitor_language(request)

        async def stream() -> AsyncIterator[bytes]:
            last: dict[str, Any] | None = None
            quiet = 0
            yield b"retry: 1000\n\n"
            while not services.draining:
                now = await view(language)
                if now != last:
                    yield sse(now, "state")
                    last, quiet = now, 0
                elif (quiet := quiet + 1) >= 15:
                    yield b": alive\n\n"
                    quiet = 0
                await asyncio.sleep(STATE_EVERY_S)

        return StreamBody(stream(), EVENT_STREAM)

    async def events(request: Request) -> Response:
        language = visitor_language(request)
        found = await services.read(recent_events, SHOWN_EVENTS)
        shown = [event_view(e.kind, utc_text(e.at), e.level, _event_params(e), language) for e in found]
        return JsonResponse({"events": shown}, headers={"Cache-Control": "no-cache"})

    async def trim(request: Request) -> Response:
        answer = await services.ask("trim", timeout_s=TRIM_WAIT_S)
        return JsonResponse({"freed_bytes": freed_bytes(answer)})

    async def restart(request: Request) -> Response:
        engines = services.state.get("engines") or {}
        awake = [n for n, e in engines.items() if e.get("state") != "absent"]
        for name in awake:
            await services.ask("restart", timeout_s=RESTART_WAIT_S, target=f"worker:{name}")
        return JsonResponse({"restarted": awake})

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/health", readyz),
        Route("/api/state", guarded(state)),
        Route("/api/state/events", guarded(state_events)),
        Route("/api/events", guarded(events)),
        Route("/api/actions/trim", guarded(trim), methods=["POST"]),
        Route("/api/actions/restart", guarded(restart), methods=["POST"]),
    ]


def _event_params(event: Any) -> dict[str, Any]:
    return {
        "freed_bytes": event.freed_bytes,
        "level": event.level,
        "resource": event.resource,
        **event.params,
    }


def freed_bytes(answer: Any) -> int | None:
    """What a trim gave back, from its numbers: one child's, or a mapping of children's. None when unknown."""
    if not isinstance(answer, Mapping):
        return None
    if isinstance(answer.get("freed_bytes"), int):
        return int(answer["freed_bytes"])
    if isinstance(answer.get("rss_before"), int) and isinstance(answer.get("rss_after"), int):
        return max(0, answer["rss_before"] - answer["rss_after"])
    parts = [found for value in answer.values() if (found := freed_bytes(value)) is not None]
    return sum(parts) if parts else None
