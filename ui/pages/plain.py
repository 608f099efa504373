"""The frame of our small plain pages: no script, no outside file, in the visitor's colours."""

from __future__ import annotations

import re
from html import escape

from starlette.responses import HTMLResponse

from pipeline.messages import Language

_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#6a6f76;--paper:#f7f6f3;--card:#fff;--line:#e4e1da;
--accent:#0f766e}
@media(prefers-color-scheme:dark){:root{--ink:#ecebe8;--soft:#a3a6ab;--paper:#16181b;--card:#1e2125;
--line:#33373d;--accent:#2dd4bf}}
*{box-sizing:border-box}
body{margin:0;min-height:100vh;display:grid;grid-template-columns:minmax(0,max-content);
place-content:center;background:var(--paper);color:var(--ink);
padding:24px;font:16px/1.6 system-ui,-apple-system,"Segoe UI","PingFang SC","Microsoft YaHei",
"Noto Sans CJK SC",sans-serif}
main{max-width:30rem;min-width:0;background:var(--card);border:1px solid var(--line);border-radius:16px;
padding:32px}
main.wide{max-width:46rem}
h1{font-size:1.35rem;margin:0 0 .5rem}h2{font-size:1.05rem;margin:1.6rem 0 .3rem}
p{margin:.5rem 0;color:var(--soft)}
code,pre{display:block;background:var(--paper);border:1px solid var(--line);border-radius:10px;
padding:12px 14px;margin:14px 0;color:var(--ink);font:14px/1.5 ui-monospace,Menlo,Consolas,monospace;
user-select:all}
pre{overflow-x:auto;user-select:text}
kbd{font:.9em ui-monospace,Menlo,Consolas,monospace;color:var(--ink);white-space:nowrap}
a.go{display:inline-block;margin:12px 12px 0 0;padding:10px 20px;border-radius:10px;
background:var(--accent);color:var(--card);text-decoration:none;font-weight:600}
a.also{display:inline-block;margin-top:12px;padding:10px 0;color:var(--accent)}
@media(max-width:30rem){body{padding:12px}main{padding:20px}}
"""


def rich(text: str) -> str:
    """HTML of a text in which commands stand between backticks."""
    return re.sub(r"`([^`]*)`", r"<kbd>\1</kbd>", escape(text))


def plain_page(
    language: Language, title: str, body: str, *, status: int = 200, ahead: str = "", wide: bool = False
) -> HTMLResponse:
    """A page with one card. `title` is text; `body` and `ahead` (for the head) are HTML."""
    tag = "zh-CN" if language == "zh" else "en"
    html = (
        f'<!doctype html><html lang="{tag}"><head><meta charset="utf-8">{ahead}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="robots" content="noindex">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main{' class=wide' if wide else ''}><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
    return HTMLResponse(html, status_code=status, headers={"Cache-Control": "no-store"})
