"""Newer or broken database, taken port, wrong settings: named, harmless, recovered from."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.engines.numbers import decode
from tests.integration.service import Service, ended, free_port, plain_words, wait_for


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


def trouble(service: Service) -> str | None:
    """The reason that the state tells for the database, None when it is well."""
    storage = service.status()["storage"]
    return None if storage is None else str(storage["params"]["reason"])


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_database_that_goes_under_a_running_service_is_named_and_comes_back(
    tmp_path: Path, how: str
) -> None:
    with Service(tmp_path / "state", ready_timeout_s=180) as service:
        assert service.speech("Number 1 makes a row.").status_code == 200
        page = service.child("ui").pid
        kept = service.database.rename(service.state / "kept.db")
        if how == "replaced":
            shutil.copy(kept, service.database)
        word = "gone" if how == "moved" else "replaced"
        wait_for(lambda: trouble(service) == word, 60, f"the word {word}")
        refused = service.speech("Number 2 is not taken.")
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "storage_full"
        assert "cosyd.db" in refused.json()["error"]["message"]
        wait_for(lambda: "cosyd.db" in on_the_page(service, "zh"), 30, "the word on the page")
        assert service.http.get("/api/state").json()["queue"] is None
        assert service.http.get("/").status_code == 200
        service.child("pipeline.worker").kill()
        wait_for(lambda: service.status()["engines"]["numbers"]["state"] != "ready", 60, "the worker's end")
        kept.replace(service.database)
        wait_for(lambda: trouble(service) is None, 60, "the end of the trouble")
        assert decode(service.speech("Number 3 is said again.").content) == [3]
        assert [row["text"] for row in service.generations(2)] == [
            "Number 1 makes a row.",
            "Number 3 is said again.",
        ]
        assert service.child("ui").pid == page and "failed" not in service.event_kinds()
        assert plain_words(service).count("database cosyd.db") == 1, "one sentence, once"


def on_the_page(service: Service, language: str) -> str:
    """What the page says of the database; it hears of it a moment after the supervisor knows."""
    told = service.http.get("/api/state", headers={"Accept-Language": language}).json()["storage"]
    return str(told["message"]) if told else ""


class HeldByModes(Service):
    """A service whom file modes hold up, as they do anybody but root."""

    def command(self) -> list[str]:
        held = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
        return [*(held if os.geteuid() == 0 else []), *super().command()]


def test_a_database_that_may_not_be_written_is_named_and_comes_back(tmp_path: Path) -> None:
    """A backup put back by root, for example, or a disk that became read-only."""
    with HeldByModes(tmp_path / "state", ready_timeout_s=180) as service:
        assert service.speech("Number 1 makes a row.").status_code == 200
        service.database.chmod(0o400)
        wait_for(lambda: trouble(service) == "read_only", 60, "the word")
        service.child("pipeline.worker").kill()
        wait_for(lambda: service.status()["engines"]["numbers"]["state"] != "ready", 60, "its end")
        assert service.http.get("/").status_code == 200
        wait_for(lambda: "cannot be written" in on_the_page(service, "en"), 30, "the word on the page")
        service.database.chmod(0o600)
        wait_for(lambda: trouble(service) is None, 60, "the end of the trouble")
        assert decode(service.speech("Number 2 is said again.").content) == [2]
        assert "failed" not in service.event_kinds()
        plain_words(service)
