"""Which language a visitor reads: `?lang=`, else the cookie it leaves, else Accept-Language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from urllib.parse import parse_qs

from pipeline.messages import Language, negotiate
from ui.auth import LANGUAGE_COOKIE, cookie


def chosen_language(query: str) -> Language | None:
    """The language asked for in the query string; `zh-CN` and the like count as zh."""
    wanted = parse_qs(query).get("lang", [""])[0].split("-")[0].lower()
    return cast(Language, wanted) if wanted in ("zh", "en") else None


def language_of(query: str, headers: Mapping[str, str]) -> Language:
    """The language of a request. `headers` have lower-case names."""
    if chosen := chosen_language(query):
        return chosen
    kept = cookie(headers, LANGUAGE_COOKIE)
    return cast(Language, kept) if kept in ("zh", "en") else negotiate(headers.get("accept-language"))
