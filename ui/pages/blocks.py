"""The page as Gradio Blocks, one for each language: inputs are Gradio's, the rest is script on our own API.

Clicks run in the browser (`js=`), not on Gradio's queue: the only queue is the database, and a page that
talks to stateless routes goes on when the web process is exchanged under it. The one server function is
`speak` (`ui.pages.speak`), for gradio_client.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any

import gradio as gr

from pipeline.audio.encode import missing_program
from pipeline.hearing.model import can_hear
from pipeline.jobs import SPEED_MAX, SPEED_MIN
from pipeline.messages import Language, catalogue, render
from pipeline.voices.source import MAX_SECONDS
from pipeline.voices.styles import DIALECTS, STYLES
from ui.services import Services

CACHE_EVERY_S, CACHE_KEPT_S = 60, 600
QUEUE_LOOK_S = 0.1
"""Files that Gradio keeps for API callers (`speak`) are looked at each minute and go after ten."""

FONT = [
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "Noto Sans CJK SC",
    "sans-serif",
]
FONT_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
SCRIPTS = (
    "base", "shelf", "record", "manner", "speak", "consent", "checking", "adding", "voice_acts", "voices",
    "words", "house",
)  # fmt: skip
STYLES_OF_PAGE = ("page", "voices")
MODES = ("builtin", "zero_shot", "cross_lingual", "instruct", "convert")
CLIP_LANGUAGES = ("zh", "en", "ja", "ko", "de", "es", "fr", "it", "ru", "yue")
"""What a reference clip may be said to be in."""
OFFERED = ("mp3", "wav", "flac", "opus", "aac")
"""Formats to download, the one that plays everywhere first; pcm is for programs."""
_SHARED_SECTIONS = ("page.", "state.", "wait.", "error.")


def theme() -> gr.themes.Base:
    """Gradio's plain theme with system fonts only: a font given as text is never fetched from anywhere."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.stone,
        radius_size=gr.themes.sizes.radius_lg,
        font=FONT,
        font_mono=FONT_MONO,
    ).set(
        body_background_fill="#f7f6f3",
        body_background_fill_dark="#15171a",
        block_background_fill="#ffffff",
        block_background_fill_dark="#1d2024",
        block_border_width="0px",
        block_shadow="none",
        block_shadow_dark="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        input_background_fill="#faf9f6",
        input_background_fill_dark="#24282d",
        input_border_color="#918d83",
        input_border_color_dark="#6d747d",
        input_border_width="1px",
        input_placeholder_color="#6d7178",
        input_placeholder_color_dark="#9a9fa7",
        button_secondary_background_fill="#ece9e2",
        button_secondary_background_fill_hover="#e0dcd2",
        button_secondary_background_fill_dark="#2c3138",
        button_secondary_background_fill_hover_dark="#383e46",
        button_secondary_text_color="#23262a",
        button_secondary_text_color_dark="#eceae6",
        border_color_primary="#e2dfd7",
        border_color_primary_dark="#363b42",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_hover="#0d655e",
        button_primary_background_fill_dark="#14b8a6",
        button_primary_background_fill_hover_dark="#2dd4bf",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#06201d",
        slider_color="#0f766e",
        slider_color_dark="#2dd4bf",
    )


def head(language: Language, services: Services, version: str) -> str:
    """What the page script needs to know, and the script and style themselves, all from this host."""
    texts = {k: v for k, v in catalogue(language).items() if k.startswith(_SHARED_SECTIONS)}
    config = {
        "language": language,
        "texts": texts,
        "limit": services.config.limits.text_chars,
        "formats": [name for name in OFFERED if not missing_program(name)],
        "styles": dict(STYLES),
        "dialects": dict(DIALECTS),
        "languages": CLIP_LANGUAGES,
        "reference_s": services.config.reference_audio_max_s,
        "convert_s": MAX_SECONDS,
        "hears": can_hear(services.config, services.paths),
    }
    # "<" would end the script element early if a text had it.
    data = json.dumps(config, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<script>window.COSYD={data}</script>"
        + "".join(
            f'<link rel="stylesheet" href="assets/cosyd/{name}.css?v={version}">' for name in STYLES_OF_PAGE
        )
        + "".join(f'<script defer src="assets/cosyd/{name}.js?v={version}"></script>' for name in SCRIPTS)
    )


def build_page(language: Language, services: Services, speak: Callable[..., Awaitable[Any]]) -> gr.Blocks:
    """The Blocks of one language. `speak` becomes the named endpoint `/speak`."""

    def text(key: str, **params: Any) -> str:
        return render(f"page.{key}", language, params)

    def mark(key: str) -> str:
        return escape(text(key))

    voices = [(f"{voice.name} · {_languages(voice.languages, text)}", voice.id) for voice in services.voices]
    ids = [voice.id for voice in services.voices]
    default = services.config.web.default_voice if services.config.web.default_voice in ids else ids[0]
    other = "en" if language == "zh" else "zh"
    with gr.Blocks(
        title=text("title"),
        analytics_enabled=False,
        delete_cache=(CACHE_EVERY_S, CACHE_KEPT_S),
    ) as page:
        _html(
            f'<header class="cosyd-head"><div class="cosyd-brand">'
            f'<span class="cosyd-logo" aria-hidden="true">'
            f"<i></i><i></i><i></i><i></i></span><span><h1>cosyd</h1><small>{mark('tagline')}</small></span></div>"
            f'<div class="cosyd-strip" id="cosyd-strip" role="group" aria-label="{mark("tab_status")}"></div>'
            f'<a class="cosyd-lang" href="?lang={other}" hreflang="{other}"'
            f' aria-label="{mark("language_switch_label")}">{mark("language_switch")}</a></header>'
            f'<div id="cosyd-notice" class="cosyd-notice" role="alert" hidden></div>'
            f"<noscript>{mark('no_script')}</noscript>",
            "cosyd-top",
        )
        with gr.Tabs(elem_id="cosyd-tabs", elem_classes="cosyd-tabs"):
            with gr.Tab(text("tab_speak"), id="speak"):
                with gr.Column(elem_classes="cosyd-card"):
                    _html(_modes(mark), "cosyd-bare")
                    spoken = gr.Textbox(
                        label=text("text_label"),
                        placeholder=text("text_placeholder"),
                        lines=7,
                        max_lines=18,
                        elem_id="cosyd-text",
                        elem_classes="cosyd-text",
                    )
                    _html('<div id="cosyd-count" class="cosyd-count"></div>', "cosyd-bare")
                    _html('<div id="cosyd-manner"></div>', "cosyd-bare")
                    with gr.Row(elem_classes="cosyd-choices"):
                        voice = gr.Dropdown(
                            voices,
                            value=default,
                            label=text("voice_label"),
                            elem_id="cosyd-voice",
                            filterable=False,
                            min_width=200,
                            scale=4,
                        )
                        speed = gr.Slider(
                            SPEED_MIN,
                            SPEED_MAX,
                            value=1.0,
                            step=0.05,
                            label=text("speed_label"),
                            elem_id="cosyd-speed",
                            min_width=150,
                            scale=4,
                            buttons=[],
                        )
                        seed = gr.Textbox(  # a Number shows 0 for "none", and 0 is a seed
                            label=text("seed_label"),
                            placeholder=text("seed_random"),
                            lines=1,
                            max_lines=1,
                            max_length=10,
                            elem_id="cosyd-seed",
                            min_width=96,
                            scale=2,
                        )
                    with gr.Row(elem_classes="cosyd-actions"):
                        go = gr.Button(
                            text("generate"), variant="primary", elem_id="cosyd-generate", size="lg"
                        )
                        stop = gr.Button(text("stop"), variant="secondary", elem_id="cosyd-stop", size="lg")
                    _html(
                        '<section id="cosyd-now" class="cosyd-now" hidden></section>',
                        "cosyd-bare",
                    )
            with gr.Tab(text("tab_voices"), id="voices"):
                with gr.Column(elem_classes="cosyd-card"):
                    _html('<div id="cosyd-voices"></div>', "cosyd-bare")
            with gr.Tab(text("tab_history"), id="history"):
                with gr.Column(elem_classes="cosyd-card"):
                    _html(_history(mark), "cosyd-bare")
            with gr.Tab(text("tab_status"), id="status"):
                with gr.Column(elem_classes="cosyd-card"):
                    _html('<div id="cosyd-status" class="cosyd-status"></div>', "cosyd-bare")
                    with gr.Row(elem_classes="cosyd-house"):
                        with gr.Column(min_width=200):
                            free = gr.Button(text("free_memory"), elem_id="cosyd-free")
                            _html(f"<small>{mark('free_memory_info')}</small>", "cosyd-bare")
                        with gr.Column(min_width=200):
                            restart = gr.Button(text("restart_app"), elem_id="cosyd-restart")
                            _html(f"<small>{mark('restart_info')}</small>", "cosyd-bare")
                    _html(
                        f'<h3 class="cosyd-h">{mark("events")}</h3>'
                        '<ol id="cosyd-events" class="cosyd-events"></ol>',
                        "cosyd-bare",
                    )
            with gr.Tab(text("tab_settings"), id="settings"):
                with gr.Column(elem_classes="cosyd-card"):
                    _html('<div id="cosyd-words"></div>', "cosyd-bare")
        fill = gr.Button("fill", elem_id="cosyd-fill", elem_classes="cosyd-hidden")
        shelf = gr.Button("voices", elem_id="cosyd-shelf-fill", elem_classes="cosyd-hidden")
        _in_browser(
            go, "(t, v, s, d) => { window.cosyd.generate(t, v, s, d); }", [spoken, voice, speed, seed]
        )
        _in_browser(stop, "() => { window.cosyd.stop(); }")
        _in_browser(free, "() => { window.cosyd.freeMemory(); }")
        _in_browser(restart, "() => { window.cosyd.restart(); }")
        fill.click(
            None,
            None,
            [spoken, voice, speed, seed],
            js="() => window.cosyd.takeFill()",
            api_visibility="private",
            queue=False,
        )
        # Voices come and go while the page is open: the list of the form is brought up to date by script.
        shelf.click(
            None, None, voice, js="() => window.cosyd.takeVoices()", api_visibility="private", queue=False
        )
        voice.change(
            None,
            voice,
            None,
            js="(v) => { window.cosyd.voiceChosen(v); }",
            api_visibility="private",
            queue=False,
        )
        gr.api(speak, api_name="speak", concurrency_limit=None)
    # Gradio's queue looks for work each millisecond, and for progress each 10, in each language's page, all
    # day: 700 wake-ups a second, 9 % of a core. Only `speak` for programs goes through it.
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = QUEUE_LOOK_S
    return page


def _html(markup: str, kind: str) -> None:
    """Markup of ours, without the styles Gradio gives to text."""
    gr.HTML(markup, apply_default_css=False, elem_classes=kind)


def _in_browser(button: gr.Button, js: str, inputs: list[Any] | None = None) -> None:
    button.click(None, inputs, None, js=js, api_visibility="private", queue=False)


def _languages(tags: tuple[str, ...], text: Callable[..., str]) -> str:
    """`English, Chinese, 14 more`: what a voice speaks; `label` in shelf.js says the same."""
    known = [text(f"language_{tag}") if tag in ("zh", "en") else tag for tag in tags]
    shown = text("language_and").join(known[:2])
    return text("language_more", shown=shown, count=len(known) - 2) if len(known) > 2 else shown


def _modes(mark: Callable[[str], str]) -> str:
    """What cannot be done here is greyed by `manner.js`, with one sentence below."""
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(mode == "builtin").lower()}"'
        f"{'' if mode == 'builtin' else ' disabled'}>{mark(f'mode_{mode}')}</button>"
        for mode in MODES
    )
    return (
        f'<div class="cosyd-modes" id="cosyd-modes" role="group" aria-label="{mark("mode_label")}">'
        f"{buttons}</div>"
        '<p class="cosyd-hint" id="cosyd-hint" role="status"></p>'
    )


def _history(mark: Callable[[str], str]) -> str:
    return (
        f'<input id="cosyd-search" class="cosyd-search" type="search" maxlength="200" autocomplete="off"'
        f' aria-label="{mark("search_label")}" placeholder="{mark("search_placeholder")}">'
        f'<div id="cosyd-history" class="cosyd-history"></div>'
        f'<button type="button" id="cosyd-more" class="cosyd-button" hidden>{mark("history_more")}</button>'
    )
