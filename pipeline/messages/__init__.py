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

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return str(super().format_field(value, format_spec))
        except (ValueError, TypeError):
            return str(value)


_FORMATTER = _Lenient()


def render(key: str, language: Language, params: Mapping[str, Any] | None = None) -> str:
    """The text of `key`; the key itself when no catalogue has it. Never raises."""
    template = catalogue(language).get(key)
    if template is None:
        return key
    return _FORMATTER.vformat(template, (), params or {})


def error_text(code: str, language: Language, params: Mapping[str, Any] | None = None) -> str:
    """What happened and what to do, for an error code. `bad_value` has one text for each reason."""
    params = params or {}
    specific = f"error.{code}_{params['reason']}" if code == "bad_value" and "reason" in params else ""
    return render(specific if specific in catalogue(language) else f"error.{code}", language, params)


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
