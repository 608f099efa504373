"""Who may come in (CONTRACTS 9): login links, sessions, API keys, and the rule about binds.

Shared by the CLI (makes links and keys), the supervisor (`check_bind`) and the web (checks them). Tokens are
256 random bits; only their SHA-256 is stored, so a copy of the database opens no door. Links and sessions are
rows of `settings` under `access:`, which is no configuration key, so the loader does not take them. Nothing
here logs, and none may: a token in a journal is a key under the mat.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import sqlite3
import unicodedata
from dataclasses import dataclass
from typing import Any

from pipeline.clock import utc_text
from pipeline.codes import CosydError
from pipeline.store.db import write_transaction

LOGIN_LINK_S = 15 * 60.0
SESSION_S = 90 * 86400.0
KEY_PREFIX = "csk_"
SETTINGS_PREFIX = "access:"
_LOGIN, _SESSION = "access:login:", "access:session:"
USED_EVERY_S = 60.0
"""`api_keys.last_used_at` is written at most this often: a busy client must not cost a write a request."""


@dataclass(frozen=True, slots=True)
class Session:
    """A person who came in by a link. `owner` "" is the house."""

    owner: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A program's key without its secret; times are UTC text, None where it has not happened."""

    id: str
    name: str
    owner: str
    created_at: str
    last_used_at: str | None
    revoked_at: str | None


def new_token() -> str:
    """256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """SHA-256 in hex. Enough for 256 random bits: there is nothing to guess, so nothing to stretch."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# -- binds -------------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """True when a socket bound to `host` can be reached from this machine only.

    A name other than `localhost` is taken for reachable: what it resolves to may change. "" and wildcards are
    reachable.
    """
    if host.strip("[]").rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def needs_login(host: str) -> bool:
    """Whether requests that come in through a bind to `host` must show a session or an API key."""
    return not is_loopback(host)


def check_bind(host: str, *, authentication: bool) -> None:
    """Refuse to be open to the network without a lock. Raises CosydError(unsafe_bind, host).

    `authentication` is whether the web that will serve this bind checks sessions and keys.
    """
    if needs_login(host) and not authentication:
        raise CosydError("unsafe_bind", host=host)


# -- login links and sessions ----------------------------------------------------------------------


def create_login_token(conn: sqlite3.Connection, now: float, *, owner: str = "") -> str:
    """A one-time token for `/login?token=`, good for 15 minutes. `now` is wall seconds; prunes dead rows."""
    token = new_token()
    with write_transaction(conn):
        _prune(conn, now)
        _put(conn, _LOGIN + hash_token(token), {"expires": now + LOGIN_LINK_S, "owner": owner})
    return token


def redeem_login_token(conn: sqlite3.Connection, token: str, now: float) -> str | None:
    """Use up a login token and return a session token for the cookie; None when it is wrong, old or used."""
    with write_transaction(conn):
        found = _take(conn, _LOGIN + hash_token(token))
        if found is None or found["expires"] <= now:
            return None
        session = new_token()
        _put(
            conn,
            _SESSION + hash_token(session),
            {"expires": now + SESSION_S, "owner": found["owner"], "created_at": utc_text(now)},
        )
        _prune(conn, now)
    return session


def check_session(conn: sqlite3.Connection, token: str, now: float) -> Session | None:
    """The session behind a cookie, or None. Reads only."""
    row = conn.execute("SELECT value FROM settings WHERE key = ?", (_SESSION + hash_token(token),)).fetchone()
    if row is None:
        return None
    value = json.loads(row[0])
    return Session(value["owner"], value["expires"]) if value["expires"] > now else None


def end_sessions(conn: sqlite3.Connection, token: str | None = None) -> int:
    """Sign out one session, or everybody when `token` is None. Returns how many ended."""
    with write_transaction(conn):
        if token is not None:
            return 0 if _take(conn, _SESSION + hash_token(token)) is None else 1
        return conn.execute(
            "DELETE FROM settings WHERE substr(key, 1, ?) = ?", (len(_SESSION), _SESSION)
        ).rowcount


# -- API keys ----------------------------------------------------------------------------------------


def create_api_key(conn: sqlite3.Connection, name: str, now: float, *, owner: str = "") -> tuple[str, str]:
    """(id, key). The key is shown once and never again. Raises CosydError(bad_value) for an unusable name."""
    name = unicodedata.normalize("NFC", name).strip()
    if not name or len(name) > 64 or not name.isprintable():
        raise CosydError("bad_value", field="name", reason="not_text")
    key, key_id = KEY_PREFIX + new_token(), secrets.token_hex(4)
    with write_transaction(conn):
        conn.execute(
            "INSERT INTO api_keys (id, name, owner, hash, created_at) VALUES (?, ?, ?, ?, ?)",
            (key_id, name, owner, hash_token(key), utc_text(now)),
        )
    return key_id, key


def list_api_keys(conn: sqlite3.Connection) -> list[ApiKey]:
    """Every key ever made, the oldest first, revoked ones too."""
    rows = conn.execute(
        "SELECT id, name, owner, created_at, last_used_at, revoked_at FROM api_keys ORDER BY created_at, id"
    )
    return [ApiKey(*row) for row in rows]


def revoke_api_key(conn: sqlite3.Connection, key_id: str, now: float) -> bool:
    """Close a key for good, by its id. False when there is no open one."""
    with write_transaction(conn):
        return (
            conn.execute(
                "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                (utc_text(now), key_id),
            ).rowcount
            > 0
        )


def check_api_key(conn: sqlite3.Connection, key: str) -> ApiKey | None:
    """The open key behind a Bearer token, or None. Reads only."""
    wanted = hash_token(key)
    row = conn.execute(
        "SELECT id, name, owner, created_at, last_used_at, revoked_at, hash FROM api_keys"
        " WHERE hash = ? AND revoked_at IS NULL",
        (wanted,),
    ).fetchone()
    if row is None or not hmac.compare_digest(row[6], wanted):
        return None
    return ApiKey(*tuple(row)[:6])


def touch_api_key(conn: sqlite3.Connection, key: ApiKey, now: float) -> bool:
    """Note that `key` was used, at most once a minute. True when a row was written."""
    if key.last_used_at is not None and key.last_used_at > utc_text(now - USED_EVERY_S):
        return False
    with write_transaction(conn):
        conn.execute("UPDATE api_keys SET last_used_at = ? WHERE id = ?", (utc_text(now), key.id))
    return True


# -- rows of `settings` -----------------------------------------------------------------------------


def _put(conn: sqlite3.Connection, key: str, value: dict[str, object]) -> None:
    conn.execute("INSERT INTO settings (key, value) VALUES (?, ?)", (key, json.dumps(value)))


def _take(conn: sqlite3.Connection, key: str) -> dict[str, Any] | None:
    row = conn.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    conn.execute("DELETE FROM settings WHERE key = ?", (key,))
    value: dict[str, Any] = json.loads(row[0])
    return value


def _prune(conn: sqlite3.Connection, now: float) -> None:
    """Forget links and sessions that ran out, so that the table stays as small as the household."""
    conn.execute(
        "DELETE FROM settings WHERE substr(key, 1, ?) = ? AND json_extract(value, '$.expires') <= ?",
        (len(SETTINGS_PREFIX), SETTINGS_PREFIX, now),
    )
