"""One ASGI application: our routes first, Gradio last at "/", the doors around everything."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from importlib import resources
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.codes import CosydError
from pipeline.messages import Language
from ui.api.door import door_routes
from ui.api.hearing import hearing_routes
from ui.api.house import house_routes
from ui.api.native import guarded, native_routes
from ui.api.openai import openai_routes
from ui.api.voice_files import voice_file_routes
from ui.api.voices import voice_routes
from ui.api.words import word_routes
from ui.auth import LANGUAGE_COOKIE
from ui.bounds import Bounds
from ui.doors import Doors
from ui.errors import error_response
from ui.jobs import Desk
from ui.language import chosen_language, language_of
from ui.missing import Missing
from ui.pages.programs import programs_page
from ui.paths import TidyPaths
from ui.renditions import Renditions
from ui.services import Services

log = logging.getLogger("cosyd.web")
LANGUAGES: tuple[Language, ...] = ("zh", "en")
PROBES = ("/healthz", "/readyz")
Endpoint = Callable[[Request], Awaitable[Response]]
_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_SCRIPTS = (
    "base", "shelf", "record", "tap", "manner", "speak", "consent", "checking", "adding", "voice_acts",
    "voices", "words", "house",
)  # fmt: skip
_ASSETS = {f"{name}.js": _SCRIPT for name in _SCRIPTS} | {"page.css": _STYLE, "voices.css": _STYLE}


class Languages:
    """Sends a request to the Gradio app of the visitor's language, and keeps `?lang=` in a cookie."""

    def __init__(self, apps: dict[Language, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope.get("headers", ())}
        query = scope.get("query_string", b"").decode("latin-1")
        language = language_of(query, headers)
        chosen = chosen_language(query)

        async def remember(message: Any) -> None:
            if message["type"] == "http.response.start" and chosen:
                cookie = f"{LANGUAGE_COOKIE}={chosen}; Path=/; Max-Age=31536000; SameSite=Lax"
                message = {**message, "headers": [*message["headers"], (b"set-cookie", cookie.encode())]}
            await send(message)

        await self._apps[language](scope, receive, remember)


def asset_routes() -> tuple[list[Route], str]:
    """The page's script and style from the package, and a version that changes with them."""
    found = {name: resources.files("ui.pages").joinpath(name).read_bytes() for name in _ASSETS}
    version = hashlib.sha256(b"".join(found[name] for name in sorted(found))).hexdigest()[:12]

    async def asset(request: Request) -> Response:
        name = str(request.path_params["name"])
        if name not in found:
            raise CosydError("not_found")
        return Response(
            found[name], media_type=_ASSETS[name], headers={"Cache-Control": "public, max-age=604800"}
        )

    return [Route("/assets/cosyd/{name}", guarded(asset), methods=["GET"])], version


@guarded
async def _missing(request: Request) -> Response:
    raise CosydError("not_found")


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    language = language_of(request.url.query, request.headers)
    await error_response(CosydError("not_found"), language)(scope, receive, send)


async def _wrong_method(request: Request, _: Exception) -> Response:
    language = language_of(request.url.query, request.headers)
    answer = error_response(CosydError("not_found"), language)
    answer.status_code = 405
    return answer


async def _broken(request: Request, error: Exception) -> Response:
    # The traceback is for the journal (Starlette raises on after this); the visitor gets a sentence.
    return error_response(CosydError("internal"), language_of(request.url.query, request.headers))


def addresses(routes: Iterable[Any]) -> list[str]:
    """`GET /v1/models`, one line for each method and address of programs, as /docs lists them."""
    found = [
        (re.sub(r":[a-z]+}", "}", route.path), method)
        for route in routes
        if isinstance(route, Route) and (route.path.startswith(("/v1/", "/api/")) or route.path in PROBES)
        for method in sorted((route.methods or {"GET"}) - {"HEAD"})
    ]
    found.sort(key=lambda address: (not address[0].startswith("/v1/"), address))
    return [f"{method:<7}{path}" for path, method in found]


class Web:
    """The application and what it holds, from the first request to the drain."""

    def __init__(self, services: Services, *, authenticate: bool) -> None:
        self.services = services
        self.desk = Desk(services)
        self.renditions = Renditions(services)
        self._gradio: list[Any] = []
        self._lifespans: list[Any] = []
        assets, version = asset_routes()
        routes: list[Any] = [
            *assets,
            *house_routes(services),
            *openai_routes(services, self.desk),
            *native_routes(services, self.desk, self.renditions),
            *voice_file_routes(services),
            *hearing_routes(services),
            *voice_routes(services, self.desk),
            *word_routes(services),
            *door_routes(services),
            Route("/docs", self._programs(authenticate), methods=["GET"]),
            Route("/redoc", self._programs(authenticate), methods=["GET"]),
            Route("/v1", _missing),
            Route("/api", _missing),
            Mount("/v1", app=_nowhere),
            Mount("/api", app=_nowhere),
            Mount("/", app=Languages(self._pages(version))),
        ]
        self.addresses = addresses(routes)
        inner = FastAPI(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={405: _wrong_method, Exception: _broken},
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )
        self.app: ASGIApp = Doors(
            Missing(Bounds(TidyPaths(inner), services.config), f"{services.config.web.root_path}/"),
            hosts=services.config.web.hosts,
            authenticate=services.may_enter if authenticate else None,
        )

    def _programs(self, key: bool) -> Endpoint:
        """/docs: our interface is small and OpenAI's, so one page tells it."""
        home = f"{self.services.config.web.root_path}/"

        async def page(request: Request) -> Response:
            language = language_of(request.url.query, request.headers)
            base = f"{request.url.scheme}://{request.headers.get('host', '')}{home}".rstrip("/")
            return programs_page(language, base, home, self.addresses, key)

        return page

    def _pages(self, version: str) -> dict[Language, ASGIApp]:
        import gradio as gr

        from ui.pages.blocks import build_page, head, theme
        from ui.pages.html import PageFilter
        from ui.pages.speak import speak_function

        apps: dict[Language, ASGIApp] = {}
        speak = speak_function(self.services, self.desk, self.renditions)
        for language in LANGUAGES:
            shell = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
            gr.mount_gradio_app(
                shell,
                build_page(language, self.services, speak),
                path="/",
                app_kwargs={"docs_url": None, "redoc_url": None, "openapi_url": None},
                footer_links=[],
                run_history=False,
                show_error=False,
                max_file_size=self.services.config.limits.upload_bytes,
                ssr_mode=False,
                enable_monitoring=False,
                pwa=False,
                mcp_server=False,
                root_path=self.services.config.web.root_path or None,
                theme=theme(),
                head=head(language, self.services, version),
            )
            self._lifespans.append(shell.router.lifespan_context(shell))
            self._gradio += [route.app for route in shell.routes if isinstance(route, Mount)]
            apps[language] = PageFilter(shell, language)
        return apps

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                await stack.enter_async_context(lifespan)
            yield
        for task in list(self.services.tasks):
            task.cancel()

    def end_streams(self, *, closing: bool) -> None:
        """A drain began: streams without an end (progress, Gradio's heartbeats) let go; sound goes on, when
        the house closes as long as somebody works on it."""
        self.services.draining = True
        self.services.closing = self.services.closing or closing
        for app in self._gradio:
            app.stop_event.set()
