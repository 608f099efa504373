"""How a CosydError leaves the web: OpenAI's error object, in the visitor's language, never a traceback.

`{"error": {"message", "type", "code", "param", "params"}}`: the same body for every API, so that clients of
OpenAI's shape (Open WebUI shows `error.message`) and our own page read one thing.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.codes import CODES, CosydError
from pipeline.messages import Language, error_text
from ui.answers import JsonResponse

RETRY_AFTER_S = 5.0
_NO_STORE = {"Cache-Control": "no-cache"}
_PARAM = {
    "empty_text": "input",
    "text_too_long": "input",
    "unknown_voice": "voice",
    "unknown_format": "response_format",
}


def _error_type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def http_status(code: str) -> int:
    """The HTTP status of a code; codes that only stand in rows or at start answer 503 (try later)."""
    return CODES[code].http or 503


def error_body(error: CosydError, language: Language, *, message: str | None = None) -> dict[str, Any]:
    """The JSON body. `param` is OpenAI's name of the field that is wrong, or null."""
    return {
        "error": {
            "message": message or error_text(error.code, language, error.params),
            "type": _error_type(http_status(error.code)),
            "code": error.code,
            "param": _PARAM.get(error.code, error.params.get("field")),
            "params": {
                k: v for k, v in error.params.items() if isinstance(v, str | int | float | bool | None)
            },
        }
    }


def error_response(error: CosydError, language: Language, *, message: str | None = None) -> JsonResponse:
    """The whole answer, with Retry-After where coming again helps."""
    status = http_status(error.code)
    headers = dict(_NO_STORE)
    if status in (429, 503):
        wait = error.retry_after_s if error.retry_after_s is not None else RETRY_AFTER_S
        headers["Retry-After"] = str(max(1, math.ceil(min(wait, 3600.0))))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JsonResponse(error_body(error, language, message=message), status_code=status, headers=headers)
