"""Small plain pages of the door: closed, link used up, welcome. No script, no outside file."""

from __future__ import annotations

from html import escape
from typing import Literal

from starlette.responses import HTMLResponse

from pipeline.messages import Language, render

_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#6a6f76;--paper:#f7f6f3;--card:#fff;--line:#e4e1da;
--accent:#0f766e}
@media(prefers-color-scheme:dark){:root{--ink:#ecebe8;--soft:#a3a6ab;--paper:#16181b;--card:#1e2125;
--line:#33373d;--accent:#2dd4bf}}
*{box-sizing:border-box}
body{margin:0;min-height:100vh;display:grid;place-items:center;background:var(--paper);color:var(--ink);
padding:24px;font:16px/1.6 system-ui,-apple-system,"Segoe UI","PingFang SC","Microsoft YaHei",
"Noto Sans CJK SC",sans-serif}
main{max-width:30rem;background:var(--card);border:1px solid var(--line);border-radius:16px;padding:32px}
h1{font-size:1.35rem;margin:0 0 .5rem}p{margin:.5rem 0;color:var(--soft)}
code{display:block;background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:12px 14px;
margin:14px 0;color:var(--ink);font:14px/1.4 ui-monospace,Menlo,Consolas,monospace;user-select:all}
a{display:inline-block;margin-top:12px;padding:10px 20px;border-radius:10px;background:var(--accent);
color:var(--card);text-decoration:none;font-weight:600}
"""

Kind = Literal["closed", "used", "welcome"]


def door_page(language: Language, kind: Kind, *, status: int, home: str = "") -> HTMLResponse:
    """The page for `kind`. A welcome goes on to `home` by itself, and has a link to it."""

    def text(key: str) -> str:
        return escape(render(f"door.{key}", language))

    ahead = f'<meta http-equiv="refresh" content="0;url={escape(home)}">' if kind == "welcome" else ""
    if kind == "welcome":
        body = f'<a href="{escape(home)}">{text("enter")}</a>'
    else:
        body = f"<code>cosyd login-link</code><p>{text('closed_programs')}</p>"
    tag = "zh-CN" if language == "zh" else "en"
    html = (
        f'<!doctype html><html lang="{tag}"><head><meta charset="utf-8">{ahead}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="robots" content="noindex">'
        f"<title>{text(f'{kind}_title')}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{text(f'{kind}_title')}</h1><p>{text(kind)}</p>{body}</main></body></html>"
    )
    response = HTMLResponse(html, status_code=status, headers={"Cache-Control": "no-store"})
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
