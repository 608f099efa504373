"""An opaque id for who asks, so that clients take turns: no address and no key in the table."""

from __future__ import annotations

import hashlib
import secrets

from starlette.requests import Request

from ui.auth import SESSION_COOKIE, bearer, cookie

_SALT = secrets.token_bytes(16)


def client_id(request: Request) -> str:
    """12 hex digits, the same for the same visitor while this process lives."""
    shown = cookie(request.headers, SESSION_COOKIE) or bearer(request.headers) or ""
    address = request.client.host if request.client else ""
    return hashlib.blake2b(f"{address}|{shown}".encode(), key=_SALT, digest_size=6).hexdigest()
