"""Newer or broken database, taken port, wrong settings: named, harmless, recovered from."""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path

from tests.integration.service import Service, ended, free_port, plain_words


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Service(state) as service:
        assert service.speech("Number 1 makes a row.").status_code == 200
    with sqlite3.connect(state / "cosyd.db") as conn:
        conn.execute("PRAGMA user_version = 9999")
    conn.close()
    before = (state / "cosyd.db").read_bytes()
    late = Service(state)
    assert ended(late) == 75
    assert "9999" in plain_words(late) or "schema_mismatch" in plain_words(late)
    assert (state / "cosyd.db").read_bytes() == before


def test_a_broken_database_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "cosyd.db").write_bytes(b"this is no database, but somebody's letter" * 100)
    service = Service(state)
    assert ended(service) != 0
    assert "cosyd.db" in plain_words(service)
    assert (state / "cosyd.db").read_bytes().startswith(b"this is no database")


def test_a_taken_port_is_an_error_that_names_the_holder(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = Service(tmp_path / "state", port=taken.getsockname()[1])
        assert ended(service) == 78
        text = plain_words(service)
        assert str(service.port) in text and str(os.getpid()) in text


def test_every_wrong_setting_is_named_at_once(tmp_path: Path) -> None:
    service = Service(tmp_path / "state", {"web.prot": "1", "keep_alive": "soon", "limits.text_chars": "-4"})
    assert ended(service) == 78
    text = plain_words(service)
    for part in ("web.prot", "did you mean web.port", "keep_alive", "limits.text_chars"):
        assert part in text


def test_a_bind_beyond_loopback_without_authentication_is_refused(tmp_path: Path) -> None:
    service = Service(tmp_path / "state", {"web.host": "0.0.0.0", "web.auth": "false"})
    assert ended(service) == 78
    assert "unsafe_bind" in plain_words(service) or "0.0.0.0" in plain_words(service)


def test_a_port_that_is_free_again_is_taken_at_once(tmp_path: Path) -> None:
    """A restart under load must not fail for sockets in TIME_WAIT."""
    port = free_port()
    for _ in range(2):
        with Service(tmp_path / "state", port=port) as service:
            assert service.speech("Number 1 is heard.").status_code == 200
