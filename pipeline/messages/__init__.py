"""Texts for people: rendered at the edge from a key and params, in Chinese or English (CONTRACTS 7).

Catalogues are `zh.toml` and `en.toml`; a test holds that both have the same keys and placeholders.
"""

from __future__ import annotations

import locale
import os
import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

from pipeline.jobs import is_han

Language = Literal["zh", "en"]


@cache
def catalogue(language: Language) -> Mapping[str, str]:
    """Dotted key -> template, for example `error.queue_full`."""
    tree = tomllib.loads(resources.files("pipeline.messages").joinpath(f"{language}.toml").read_text("utf-8"))
    flat: dict[str, str] = {}

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = str(value)

    walk(tree, "")
    return flat


class _Lenient(string.Formatter):
    """A missing param shows as `?`: a message must never fail while an error is being reported."""

    def __init__(self, language: Language) -> None:
        self._language = language

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            if format_spec == "size":
                return size_text(float(value))
            if format_spec == "time":
                return time_text(float(value), self._language)
            if format_spec == "percent":
                return f"{float(value) * 100:.0f} %"
            return str(super().format_field(value, format_spec))
        except (ValueError, TypeError, OverflowError):
            return "?" if value is None else str(value)

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value

    def fill(self, template: str, params: Mapping[str, Any]) -> str:
        """Fill the template. Chinese templates have a blank on both sides of every placeholder, as Latin
        letters and digits want; it goes away where the value turns out to be Han."""
        out, gap = "", ""
        for literal, name, spec, _ in self.parse(template):
            if gap and literal.startswith(" ") and is_han(literal[1:2] or " "):
                literal = literal[1:]
            out += literal
            gap = ""
            if name is None:
                continue
            value = self.format_field(self.get_value(name, (), params), spec or "")
            if self._language == "zh" and value:
                if out.endswith(" ") and is_han(out[-2:-1] or " ") and is_han(value[0]):
                    out = out[:-1]
                gap = value[-1] if is_han(value[-1]) else ""
            out += value
        return out


_FORMATTERS: Mapping[Language, _Lenient] = {"zh": _Lenient("zh"), "en": _Lenient("en")}


def size_text(count_bytes: float) -> str:
    """`312 MB`, `2.1 GB`: powers of 1024 under the names that memory is sold by: a 4 GB card is 4 GB."""
    value, unit = abs(count_bytes), "B"
    for bigger in ("KB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1024, bigger
    digits = 1 if unit in ("GB", "TB") and value < 100 else 0
    text = f"{value:.{digits}f}".removesuffix(".0")
    return f"{'-' if count_bytes < 0 else ''}{text} {unit}"


_TIME_UNITS: Mapping[Language, tuple[str, str, str, str]] = {
    "en": ("s", "min", "h", "days"),
    "zh": ("秒", "分钟", "小时", "天"),
}


def time_text(seconds: float, language: Language) -> str:
    """`0.3 s`, `12 s`, `3 min`, `5 h`, `2 days`; rounded, for people."""
    unit = _TIME_UNITS[language]
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + f" {unit[0]}"
    if seconds < 90:
        return f"{seconds:.0f} {unit[0]}"
    if seconds < 5400:
        return f"{seconds / 60:.0f} {unit[1]}"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} {unit[2]}"
    return f"{seconds / 86400:.0f} {unit[3]}"


def render(key: str, language: Language, params: Mapping[str, Any] | None = None) -> str:
    """The text of `key`; the key itself when no catalogue has it. Never raises.

    Placeholders are plain names, with `:size` (bytes), `:time` (seconds) or `:percent` (ratio) where wanted.
    """
    template = catalogue(language).get(key)
    if template is None:
        return key
    return _FORMATTERS[language].fill(template, params or {})


def error_text(code: str, language: Language, params: Mapping[str, Any] | None = None) -> str:
    """What happened and what to do, for an error code. Where `error.CODE_REASON` exists it is used
    (`bad_value` has one text for each reason). A list of `problems` follows, one a line."""
    params = params or {}
    specific = f"error.{code}_{params['reason']}" if "reason" in params else ""
    if code == "engine_failed" and f"gpu.{params.get('reason')}" in catalogue(language):
        specific = f"gpu.{params['reason']}"  # what is the matter with the card, and its cure
    text = render(
        specific if specific in catalogue(language) else f"error.{code}", language, _worded(params, language)
    )
    problems = params.get("problems")
    if isinstance(problems, list | tuple):
        text = "\n".join([text, *(f"  - {problem_text(problem, language)}" for problem in problems)])
    return text


def problem_text(problem: object, language: Language) -> str:
    """One problem of a configuration (`pipeline.profile.problems`): where it is, and what would be right."""
    if not isinstance(problem, Mapping):
        return str(problem)
    said = render(f"config.{problem.get('what')}", language, problem.get("params"))
    return f"{problem.get('at')}{'：' if language == 'zh' else ': '}{said}"


_WORDS = {
    "old": "state.level",
    "new": "state.level",
    "resource": "state.resource",
    "child": "state.child",
    "reason": "state.reason",
    "state": "state.gpu",
}


def event_text(kind: str, language: Language, params: Mapping[str, Any] | None = None) -> str:
    """One sentence for a row of `events`. Levels, resources and children are put in people's words; trouble
    with the card comes with its cure."""
    if kind == "gpu_state_changed" and f"gpu.{(params or {}).get('state')}" in catalogue(language):
        return render(f"gpu.{(params or {})['state']}", language, params)
    if kind == "admission_refused" and "short_bytes" not in (params or {}):
        kind = "admission_refused_foreign"  # nobody knows how much others will give back
    return render(f"event.{kind}", language, _worded(params or {}, language))


def _worded(params: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """`params` with people's words in place of machines'; a resource that is not told is either."""
    shown = {"resource": "any", **params}
    for name, section in _WORDS.items():
        if isinstance(value := shown.get(name), str):
            shown[name] = word(section, value, language)
    return shown


def word(section: str, value: str, language: Language) -> str:
    """People's word for a machine's: `word("state.level", "LOW", "en")`; `value` itself when there is none.

    `worker:NAME` (or an engine's name where a child is meant) becomes "voice engine NAME".
    """
    if section == "state.child" and value != "web":
        return render("state.child.worker", language, {"engine": value.removeprefix("worker:")})
    key = f"{section}.{value.lower()}"
    if section == "state.reason" and value.endswith("_timeout") and key not in catalogue(language):
        key = "state.reason.stop_timeout"  # whatever it was asked to end for
    return render(key, language) if key in catalogue(language) else value


def negotiate(accept_language: str | None) -> Language:
    """zh when a Chinese tag outranks English in an Accept-Language header, else en."""
    best: tuple[float, Language] = (0.0, "en")
    for item in (accept_language or "").split(","):
        tag, _, rest = item.strip().partition(";")
        try:
            quality = float(rest.strip().removeprefix("q=")) if rest else 1.0
        except ValueError:
            quality = 0.0
        primary = tag.split("-")[0].lower()
        if quality > best[0] and primary in ("zh", "en"):
            best = (quality, "zh" if primary == "zh" else "en")
    return best[1]


def terminal_language(environ: Mapping[str, str] = os.environ) -> Language:
    """By COSYD_LANG, LC_ALL, LC_MESSAGES, LANG, for the CLI and the installer."""
    for name in ("COSYD_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := environ.get(name):
            return "zh" if locale.normalize(value).lower().startswith("zh") else "en"
    return "en"
