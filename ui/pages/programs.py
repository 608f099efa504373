"""Two plain pages for who looks around by hand: /docs (how programs use this house), and nothing here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from starlette.responses import HTMLResponse

from pipeline.jobs import FORMATS
from pipeline.messages import Language, render
from ui.pages.plain import plain_page, rich

_EXAMPLE = """curl {base}/v1/audio/speech \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "tts-1", "voice": "alloy", "input": "The kettle is boiling."}}' \\
  -o kettle.mp3"""


def programs_page(language: Language, base: str, home: str, routes: Iterable[str], key: bool) -> HTMLResponse:
    """How to speak from a program. `base` is the address that the visitor used, `routes` are lines such as
    `GET /v1/models`, `key`: whether programs need one here."""

    def text(name: str, **params: str) -> str:
        return rich(render(f"door.{name}", language, params))

    example = _EXAMPLE.format(base=base)
    if key:
        example = example.replace(" \\\n", " \\\n  -H 'Authorization: Bearer KEY' \\\n", 1)
    body = (
        f"<p>{text('programs')}</p><code>{escape(base)}/v1</code>"
        f"<p>{text('programs_key' if key else 'programs_no_key')}</p>"
        f"<pre>{escape(example)}</pre>"
        f"<p>{text('programs_formats', formats=', '.join(FORMATS))}</p>"
        f"<h2>{text('programs_all')}</h2><pre>{escape(chr(10).join(routes))}</pre>"
        f'<a class="go" href="{escape(home)}">{text("enter")}</a>'
    )
    return plain_page(language, render("door.programs_title", language), body, wide=True)


def nothing_page(language: Language, home: str) -> HTMLResponse:
    """404 for a browser, with the ways on."""

    def text(name: str) -> str:
        return escape(render(f"door.{name}", language))

    body = (
        f"<p>{text('nothing')}</p>"
        f'<a class="go" href="{escape(home)}">{text("enter")}</a>'
        f'<a class="also" href="{escape(home)}docs">{text("programs_title")}</a>'
    )
    return plain_page(language, render("door.nothing_title", language), body, status=404)
