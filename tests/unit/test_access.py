"""Login links, sessions, API keys and the rule about binds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.configuration import read_settings
from pipeline import access
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.db import connect
from pipeline.store.ensure import ensure_schema

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = StatePaths.at(tmp_path_factory.mktemp("access"), {})
    paths.ensure()
    ensure_schema(paths)
    return paths.database


@pytest.fixture
def conn(database: Path) -> Iterator[sqlite3.Connection]:
    connection = connect(database, "accept")
    connection.execute("DELETE FROM settings")
    connection.execute("DELETE FROM api_keys")
    yield connection
    connection.close()


def test_a_link_opens_once_and_its_session_lasts_ninety_days(conn: sqlite3.Connection) -> None:
    token = access.create_login_token(conn, NOW, owner="")
    session = access.redeem_login_token(conn, token, NOW + 60)
    assert session is not None
    assert access.redeem_login_token(conn, token, NOW + 61) is None
    assert access.check_session(conn, session, NOW + 60 + access.SESSION_S - 1) is not None
    assert access.check_session(conn, session, NOW + 60 + access.SESSION_S + 1) is None


def test_a_link_is_dead_after_fifteen_minutes(conn: sqlite3.Connection) -> None:
    token = access.create_login_token(conn, NOW)
    assert access.redeem_login_token(conn, token, NOW + access.LOGIN_LINK_S) is None


@pytest.mark.parametrize("wrong", ["", "x", "\ud800", "a" * 10_000, "' OR 1=1 --", "\x00"])
def test_a_wrong_token_opens_nothing(conn: sqlite3.Connection, wrong: str) -> None:
    access.create_login_token(conn, NOW)
    access.create_api_key(conn, "k", NOW)
    assert access.redeem_login_token(conn, wrong, NOW) is None
    assert access.check_session(conn, wrong, NOW) is None
    assert access.check_api_key(conn, wrong) is None


def test_a_login_token_is_no_session_and_a_session_is_no_key(conn: sqlite3.Connection) -> None:
    token = access.create_login_token(conn, NOW)
    assert access.check_session(conn, token, NOW) is None
    session = access.redeem_login_token(conn, token, NOW)
    assert session is not None
    assert access.check_api_key(conn, session) is None
    assert access.redeem_login_token(conn, session, NOW) is None


def test_the_database_holds_no_token_in_clear(conn: sqlite3.Connection) -> None:
    token = access.create_login_token(conn, NOW)
    session = access.redeem_login_token(conn, access.create_login_token(conn, NOW), NOW)
    _, key = access.create_api_key(conn, "openwebui", NOW)
    dump = "\n".join(
        str(tuple(row))
        for table in ("settings", "api_keys")
        for row in conn.execute(f"SELECT * FROM {table}")
    )
    for secret in (token, session, key):
        assert secret is not None and secret not in dump


def test_a_key_works_until_it_is_revoked(conn: sqlite3.Connection) -> None:
    key_id, key = access.create_api_key(conn, " 书房的 Open WebUI ", NOW)
    found = access.check_api_key(conn, key)
    assert found is not None and found.id == key_id and found.name == "书房的 Open WebUI"
    assert access.revoke_api_key(conn, key_id, NOW + 5) is True
    assert access.revoke_api_key(conn, key_id, NOW + 6) is False
    assert access.check_api_key(conn, key) is None
    assert [k.revoked_at is not None for k in access.list_api_keys(conn)] == [True]


def test_the_last_use_of_a_key_is_noted_at_most_once_a_minute(conn: sqlite3.Connection) -> None:
    _, key = access.create_api_key(conn, "k", NOW)

    def use(at: float) -> bool:
        found = access.check_api_key(conn, key)
        assert found is not None
        return access.touch_api_key(conn, found, at)

    assert [use(NOW + s) for s in (1, 30, 60, 62, 130)] == [True, False, False, True, True]


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "x" * 65])
def test_a_key_wants_a_usable_name(conn: sqlite3.Connection, name: str) -> None:
    with pytest.raises(CosydError) as caught:
        access.create_api_key(conn, name, NOW)
    assert caught.value.code == "bad_value"


def test_everybody_can_be_signed_out_and_dead_rows_go(conn: sqlite3.Connection) -> None:
    sessions = [access.redeem_login_token(conn, access.create_login_token(conn, NOW), NOW) for _ in range(3)]
    assert sessions[0] is not None and access.end_sessions(conn, sessions[0]) == 1
    assert access.end_sessions(conn) == 2
    access.create_login_token(conn, NOW)
    access.create_login_token(conn, NOW + 3600)
    assert conn.execute("SELECT count(*) FROM settings").fetchone()[0] == 1
    conn.execute("INSERT INTO settings (key, value) VALUES ('limits.text_chars', '5')")
    assert read_settings(conn) == {"limits.text_chars": "5"}, "a login is no configuration"


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.10", False),
        ("::ffff:192.168.1.10", False),
        ("nas.lan", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_only_loopback_may_go_without_a_login(host: str, inside: bool) -> None:
    assert access.is_loopback(host) is inside
    assert access.needs_login(host) is not inside
    access.check_bind(host, authentication=True)
    if inside:
        access.check_bind(host, authentication=False)
    else:
        with pytest.raises(CosydError) as caught:
            access.check_bind(host, authentication=False)
        assert caught.value.code == "unsafe_bind" and caught.value.params["host"] == host
