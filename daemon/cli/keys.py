"""`cosyd login-link` and `cosyd key`: how people and programs come in (CONTRACTS 9)."""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import click

from daemon.cli.control import status
from daemon.cli.frame import Group, json_option, note, print_json, state_option, text
from daemon.cli.layers import current_config
from daemon.sockets import lan_address
from pipeline.access import (
    create_api_key,
    create_login_token,
    is_loopback,
    list_api_keys,
    revoke_api_key,
)
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.db import check_schema, connect
from pipeline.store.ensure import ensure_schema


@contextmanager
def open_database(paths: StatePaths) -> Iterator[sqlite3.Connection]:
    """A writing connection; a database that is not there yet is made, as keys may come before the start."""
    if not paths.database.exists():
        paths.ensure()
        ensure_schema(paths)
    conn = connect(paths.database, "accept")
    try:
        check_schema(conn)
        yield conn
    finally:
        conn.close()


def base_url(host: str, port: int) -> str:
    """`http://host:port` that a browser can open: a wildcard bind is shown as the LAN address."""
    if host in ("", "0.0.0.0", "::"):
        host = lan_address().replace("0.0.0.0", "127.0.0.1")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def web_url(paths: StatePaths) -> str:
    """Where the page is: what the running cosyd says, else what it is configured to."""
    web = (status(paths) or {}).get("web") or {}
    if isinstance(web.get("url"), str):
        return str(web["url"]).rstrip("/")
    config = current_config(paths)
    return base_url(config.web.host, int(web.get("port") or config.web.port))


@click.command(cls=Group.command_class, help_key="help_login_link", example="cosyd login-link")
@state_option
@json_option
def login_link(paths: StatePaths, as_json: bool) -> None:
    """Print a link that lets one device in."""
    with open_database(paths) as conn:
        token = create_login_token(conn, time.time())
    url = web_url(paths)
    link = f"{url}/login?token={token}"
    if as_json:
        print_json({"url": link, "valid_s": 900})
        return
    click.echo(link)
    note("link_valid")
    if is_loopback(urlsplit(url).hostname or ""):
        note("link_not_needed", url=url)


@click.group(cls=Group, help_key="help_key", example='cosyd key add "Open WebUI"')
def key() -> None:
    """API keys for programs."""


@key.command("add", help_key="help_key_add", example='cosyd key add "Open WebUI"')
@click.argument("name")
@state_option
@json_option
def add(name: str, paths: StatePaths, as_json: bool) -> None:
    """Make a key; it is shown this once."""
    with open_database(paths) as conn:
        key_id, secret = create_api_key(conn, name, time.time())
    if as_json:
        print_json({"id": key_id, "name": name, "key": secret})
        return
    click.echo(secret)
    note("key_once", id=key_id)


@key.command("list", help_key="help_key_list", example="cosyd key list")
@state_option
@json_option
def list_(paths: StatePaths, as_json: bool) -> None:
    """List the keys, without their secret."""
    with open_database(paths) as conn:
        keys = list_api_keys(conn)
    if as_json:
        print_json([dataclasses.asdict(found) for found in keys])
        return
    if not keys:
        note("key_none")
        return
    from daemon.cli.tables import day, print_table

    print_table(
        ["col_id", "col_name", "col_made", "col_used", "col_state"],
        [
            (
                k.id, k.name, day(k.created_at), day(k.last_used_at),
                text("key_revoked" if k.revoked_at else "key_open"),
            )
            for k in keys
        ],
    )  # fmt: skip


@key.command("revoke", help_key="help_key_revoke", example="cosyd key revoke 1a2b3c4d")
@click.argument("key_id", metavar="ID")
@state_option
def revoke(key_id: str, paths: StatePaths) -> None:
    """Close a key for good."""
    with open_database(paths) as conn:
        if not revoke_api_key(conn, key_id, time.time()):
            raise CosydError("not_found", reason="key", id=key_id)
    note("key_closed", id=key_id)
