"""Small plain pages of the door: closed, link used up, welcome."""

from __future__ import annotations

from html import escape
from typing import Literal

from starlette.responses import HTMLResponse

from pipeline.messages import Language, render
from ui.pages.plain import plain_page

Kind = Literal["closed", "used", "welcome"]


def door_page(language: Language, kind: Kind, *, status: int, home: str = "") -> HTMLResponse:
    """The page for `kind`. A welcome goes on to `home` by itself, and has a link to it."""

    def text(key: str) -> str:
        return escape(render(f"door.{key}", language))

    ahead = f'<meta http-equiv="refresh" content="0;url={escape(home)}">' if kind == "welcome" else ""
    if kind == "welcome":
        body = f'<a class="go" href="{escape(home)}">{text("enter")}</a>'
    else:
        body = f"<code>cosyd login-link</code><p>{text('closed_programs')}</p>"
    title = render(f"door.{kind}_title", language)
    response = plain_page(language, title, f"<p>{text(kind)}</p>{body}", status=status, ahead=ahead)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
