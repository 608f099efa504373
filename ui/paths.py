"""Addresses as clients write them, brought to the one we serve: double slashes, no /v1, a final slash."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SHORT = ("/audio/speech", "/audio/voices", "/audio/models", "/models")
_OURS = ("/v1/", "/api/", "/healthz", "/readyz", "/health", "/login", "/audio/", "/models")


def tidy_path(path: str) -> str:
    """The served form of `path`; Gradio's own paths stay as they are."""
    tidy = re.sub(r"/{2,}", "/", path)
    if not f"{tidy}/".startswith(_OURS):
        return path
    tidy = tidy.rstrip("/") or "/"
    while tidy.startswith("/v1/v1/"):
        tidy = tidy[3:]
    if tidy.startswith(_SHORT) and any(tidy == s or tidy.startswith(f"{s}/") for s in _SHORT):
        tidy = f"/v1{tidy}"
    return tidy


class TidyPaths:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            tidy = tidy_path(scope["path"])
            if tidy != scope["path"]:
                scope = {**scope, "path": tidy, "raw_path": tidy.encode()}
        await self._app(scope, receive, send)
