"""JSON answers that can always be sent.

Half a surrogate pair, which a client may write as `\\ud800` and we then quote, becomes a question mark and no
error in the middle of the answer.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


def json_bytes(value: Any) -> bytes:
    """Compact JSON in UTF-8. NaN and infinity are no JSON: ValueError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


class JsonResponse(JSONResponse):
    """`JSONResponse` by `json_bytes`."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)
