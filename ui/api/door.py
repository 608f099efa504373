"""/login: a one-time link becomes a cookie for 90 days."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.access import SESSION_S, redeem_login_token
from ui.api.http import visitor_language
from ui.api.native import guarded
from ui.auth import SESSION_COOKIE
from ui.pages.door import door_page
from ui.services import Services


def door_routes(services: Services) -> list[Route]:
    """The answer is a page, not a redirect, so that the cookie is set also where a redirect would lose it."""

    async def login(request: Request) -> Response:
        language = visitor_language(request)
        token = request.query_params.get("token", "")
        session = None
        if token and request.method == "GET":
            session = await services.write(redeem_login_token, token, services.clock.wall())
        if session is None:
            return door_page(language, "used", status=401)
        answer = door_page(language, "welcome", status=200, home=f"{services.config.web.root_path}/")
        answer.set_cookie(
            SESSION_COOKIE,
            session,
            max_age=int(SESSION_S),
            path=services.config.web.root_path or "/",
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return answer

    return [Route("/login", guarded(login), methods=["GET"])]
