"""A support bundle gives nothing away: secrets are planted in every place it reads from, and looked for."""

from __future__ import annotations

import getpass
import json
import socket
import sqlite3
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from daemon import trace
from daemon.cli import scrub, support_bundle
from daemon.cli.support_bundle import PARTS
from daemon.sample import OwnProcess, RamReading, Sample
from pipeline import messages
from pipeline.clock import utc_text
from pipeline.paths import StatePaths
from pipeline.profile import Config
from tests.unit.storekit import new_state, opened
from tests.unit.test_cli import cosyd

WORD = "zweihundert"
"""In every planted secret."""
ADDRESSES = ("192.0.2.77", "2001:db8::77", "nas-of-annika.lan")
TIMES = ("_at", "at", "not_before", "lease_until")
CLOSED = {
    "state": ("queued", "pending"),
    "lane": ("page",),
    "status": ("done",),
    "role": ("adult", "user", "admin"),
}


def planted_params() -> dict[str, Any]:
    return {
        "name": f"program-{WORD}", "reason": f"because {WORD}", "engine": f"engine-{WORD}",
        "child": f"worker:{WORD}",
        "targets": f"web, worker:{WORD}", "path": f"/home/{WORD}/x", "detail": WORD, f"key-{WORD}": 5,
        "state": WORD, "old": WORD, "new": WORD, "resource": WORD, "task": WORD, "status": WORD, "code": WORD,
        "free_bytes": 123456, "nested": {"text": WORD, "bytes": 7}, "problems": [WORD],
        "params": {"text": WORD},
        "footprint": {"rss_bytes": 99, "voice": WORD}, "job": f"job-{WORD}", "host": ADDRESSES[0],
    }  # fmt: skip


def fill(conn: sqlite3.Connection) -> int:
    """A row in every table with a secret in every column that takes any text; how many columns those are."""
    conn.execute("PRAGMA foreign_keys=OFF")
    planted = 0
    tables = [row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    for table in sorted(tables):
        if table.startswith(("sqlite_", "search", "generations_")) or "fts" in table:
            continue
        values: dict[str, Any] = {}
        for column in conn.execute(f"PRAGMA table_info({table})"):
            name, kind = column["name"], column["type"].upper()
            if name in ("seq", "schema_version") or (name == "id" and "INT" in kind):
                continue
            if kind not in ("TEXT", "ANY", ""):
                values[name] = 1
            elif name.endswith(TIMES):
                values[name] = utc_text(time.time() - 60)
            elif name in ("params", "consent"):
                values[name] = json.dumps(planted_params())
            elif name in ("level", "resource", "code", "error_code", "wait_reason") or name not in CLOSED:
                values[name], planted = f"{table}-{name}-{WORD}", planted + 1
            else:
                values[name] = CLOSED[name][0]
        if table == "events":
            values["kind"] = "worker_killed"
        for option in range(3):
            try:
                marks = ", ".join("?" * len(values))
                conn.execute(
                    f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
                )
                break
            except sqlite3.IntegrityError:
                for name, words in CLOSED.items():
                    if name in values:
                        values[name] = words[min(option + 1, len(words) - 1)]
        else:
            raise AssertionError(f"nothing could be planted in {table}")
    return planted


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is in the bundle of a machine full of secrets, file by file."""
    folder = tmp_path / f"home-{WORD}"
    paths = new_state(folder / "state")
    conn = opened(paths)
    assert fill(conn) > 40
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()
    assert paths.database.read_bytes().count(WORD.encode()) > 40
    monkeypatch.chdir(folder)
    Path("cosyd.toml").write_text(
        f'keep_warm = ["06:30-23:00"]\ngpu = "GPU-{WORD}"\n[web]\nhost = "{ADDRESSES[0]}"\n'
        f'hosts = ["{ADDRESSES[2]}", "{ADDRESSES[1]}"]\nroot_path = "/{WORD}"\ndefault_voice = "{WORD}"\n'
        f"port = 54321\n"
        f'[engines.extra]\n{WORD} = "{WORD}.module:Engine"\n[schedule]\nbackup_at = "{WORD}"\n'
    )
    state = {
        "pid": 1, "level": "low", "profile": "cpu", "gpu_state": "gpu_lost", "stopping": False,
        "ram": {"available_bytes": 5, "total_bytes": 9, "level": "low", "source": "cgroup"},
        "vram": {"free_bytes": 1, "uuid": f"GPU-{WORD}", "name": f"Card {WORD}"},
        "web": {"state": "ready", "url": f"http://{ADDRESSES[0]}:7860/", "rss_bytes": 3, "restarts": 2},
        "engines": {
            WORD: {"state": "ready", "code": None, "params": planted_params(), "queued": 1},
            "builtin": {"state": "failed", "code": "engine_failed", "restarts": 4,
                        "params": planted_params()},
        },
        "pressure": {"foreign": [{"name": f"program-{WORD}", "bytes": 77, "resource": "ram"}]},
    }  # fmt: skip
    monkeypatch.setattr(support_bundle.control, "status", lambda paths: state)
    look = Sample(RamReading(5, 9), None, (OwnProcess(f"worker:{WORD}", 5, 6), OwnProcess("web", 7, 8)), 2)
    lines = [trace.header(Config()), trace.encode(look, 1.0)]
    monkeypatch.setattr(support_bundle, "running_trace", lambda paths: "\n".join(lines))
    file = folder / "bundle.zip"
    result = cosyd("support-bundle", "-o", str(file), paths=paths)
    assert result.exit_code == 0, result.stderr
    assert file.stat().st_mode & 0o077 == 0, "for its owner only"
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_no_planted_secret_is_in_the_bundle(bundle: dict[str, str], tmp_path: Path) -> None:
    secrets = [WORD, *ADDRESSES, "54321", str(tmp_path), socket.gethostname(), str(Path.home())]
    user = getpass.getuser()
    secrets += [user] if user != "root" else []
    for name, content in bundle.items():
        found = [secret for secret in secrets if secret in content or secret in name]
        assert not found, f"{found} in {name}: {content[:2000]}"


def test_what_helps_is_in_it(bundle: dict[str, str]) -> None:
    assert set(bundle) == {"README.txt", *PARTS}
    assert not [name for name, content in bundle.items() if "not_made" in content], "every part was made"
    event = json.loads(bundle["events.jsonl"].splitlines()[-1])
    assert event["kind"] == "worker_killed" and event["params"]["free_bytes"] == 123456
    assert event["params"]["child"] == "worker:other" and event["params"]["targets"] == "web, worker:other"
    state = json.loads(bundle["status.json"])
    assert state["engines"]["builtin"]["restarts"] == 4 and state["gpu_state"] == "gpu_lost"
    assert state["pressure"]["foreign"] == [{"bytes": 77, "resource": "ram"}]
    rules = json.loads(bundle["configuration.json"])
    assert rules["guard.ram.low_enter"] == {"value": "max(10 %, 402653184 B)", "own": False}
    assert rules["web.host"] == {"value": "set", "own": True} and rules["gpu"]["value"] == "by UUID"
    config, looks = trace.read_trace(bundle["trace.jsonl"].splitlines())
    ((_, look),) = looks
    assert [p.name for p in look.own] == ["worker:other", "web"] and config.guard == Config().guard
    assert len(bundle["samples.csv"].splitlines()) == 2
    assert json.loads(bundle["counts.json"])["jobs"][0]["n"] == 1


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_goes_in_is_listed_before_anybody_sends_it(lang: str, tmp_path: Path) -> None:
    paths = new_state(tmp_path / "state")
    result = cosyd("support-bundle", "-o", str(tmp_path / "b.zip"), paths=paths, lang=lang)
    assert result.exit_code == 0 and result.stdout.strip() == str(tmp_path / "b.zip")
    for name, (key, _) in PARTS.items():
        assert name in result.stderr
        assert messages.render(f"cli.{key}", lang) in result.stderr  # type: ignore[arg-type]


def test_a_part_that_cannot_be_made_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = StatePaths.at(tmp_path / "state", {})
    paths.ensure()
    paths.database.write_text(f"not a database {WORD}")
    file = tmp_path / "b.zip"
    support_bundle.write_bundle(paths, file)
    with zipfile.ZipFile(file) as archive:
        assert json.loads(archive.read("events.jsonl")) == {"not_made": "DatabaseError"} or b"not_made" in (
            archive.read("events.jsonl")
        )
        assert json.loads(archive.read("configuration.json"))["guard.cadence_s"]["value"] == 1.0
        assert all(WORD.encode() not in archive.read(name) for name in archive.namelist())


def test_a_number_that_is_none_and_a_key_that_is_new_are_left_out() -> None:
    assert scrub.scrub({"bytes": float("nan"), "seconds": float("inf"), "new_thing": 5, "own_bytes": 1}) == {
        "own_bytes": 1
    }
