"""Door rules as pure functions (CONTRACTS 9): which Host, which Origin, which credentials a request shows.

`ui.doors` applies them to every request, Gradio's own endpoints included. Nothing here does I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

SESSION_COOKIE = "cosyd_session"
LANGUAGE_COOKIE = "cosyd_lang"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# What a page of another site can send without asking first (Fetch standard, "CORS-safelisted method").
_SIMPLE_METHODS = frozenset({"POST"})
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def split_host(host: str) -> tuple[str, str] | None:
    """A Host header as (lower-case name without brackets and final dot, port or ""); None when malformed."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
    else:
        name, colon, port = host.partition(":")
        if ":" in port or (colon and not port):
            return None
    if port and not (port.isascii() and port.isdigit()):
        return None
    name = name.rstrip(".")
    return (name, port) if name and not any(ch.isspace() or ch in "/@\\?#" for ch in name) else None


def host_allowed(host: str | None, names: Iterable[str]) -> bool:
    """Whether `host` (a Host header) may be ours: an IP literal, localhost, *.local, *.lan or one of `names`.

    An attacker's name that resolves to our address (DNS rebinding) is none of these.
    """
    parts = split_host(host or "")
    if parts is None:
        return False
    name = parts[0]
    if name == "localhost" or name.endswith((".local", ".lan")):
        return True
    if name in {n.strip().rstrip(".").lower() for n in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(origin: str, host: str) -> bool:
    """Whether `origin` names the same host and port as the Host header.

    The scheme is left out: behind a proxy that ends TLS we see http where the browser saw https.
    """
    scheme, separator, netloc = origin.strip().partition("://")
    theirs, ours = split_host(netloc), split_host(host)
    if not separator or theirs is None or ours is None:
        return False
    default = _DEFAULT_PORTS.get(scheme.lower(), "")
    return theirs[0] == ours[0] and (theirs[1] or default) == (ours[1] or default)


def change_allowed(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a request that changes state can come from our page or a program, not from another site's page.

    Passes with a same-origin Origin. Without Origin it must be something a foreign page cannot send without
    asking: JSON, a bearer key, or a method such as DELETE. `headers` have lower-case names.
    """
    if method in SAFE_METHODS:
        return True
    origin = headers.get("origin")
    if origin is not None:
        return same_origin(origin, headers.get("host", ""))
    if method not in _SIMPLE_METHODS or "authorization" in headers:
        return True
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer`, or None."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def cookie(headers: Mapping[str, str], name: str) -> str | None:
    """One cookie's value, or None."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[name].value if name in jar else None


def wants_html(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser asks for a page (and should see a page, not JSON, when it is refused)."""
    return method in ("GET", "HEAD") and "text/html" in headers.get("accept", "")
