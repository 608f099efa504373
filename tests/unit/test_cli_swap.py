"""`cosyd admin swap` where no supervisor runs: straight to the helper, in both languages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli import swap
from pipeline.paths import StatePaths
from tests.unit.storekit import new_state
from tests.unit.test_cli import cosyd
from tests.unit.test_swap_keeper import GIB, FakeHelper


@pytest.fixture
def state(tmp_path: Path) -> StatePaths:
    return new_state(tmp_path / "state")


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHelper]:
    path = tmp_path / "swap.sock"
    monkeypatch.setattr(swap, "SOCKET", path)
    made = FakeHelper(path)
    yield made
    made.close(path)


def test_status_shows_whose_swap_there_is(helper: FakeHelper, state: StatePaths) -> None:
    helper.state |= {
        "own_bytes": 2 * GIB,
        "inactive_bytes": GIB,
        "others": [{"kind": "zram", "bytes": 4 * GIB, "used_bytes": GIB}],
    }
    shown = cosyd("admin", "swap", "status", paths=state)
    assert shown.exit_code == 0
    for words in ("cosyd's own", "zram", "In all: 6 GB", "wants 8 GB"):
        assert words in shown.stdout
    chinese = cosyd("admin", "swap", "status", paths=state, lang="zh")
    assert "共 6 GB" in chinese.stdout
    found = json.loads(cosyd("admin", "swap", "status", "--json", paths=state).stdout)
    assert (found["total_bytes"], found["wanted_bytes"]) == (6 * GIB, 8 * GIB)


def test_plan_changes_nothing_and_apply_does_it(helper: FakeHelper, state: StatePaths) -> None:
    assert "from 0 B to 8 GB" in cosyd("admin", "swap", "plan", paths=state).stdout
    assert helper.state["own_bytes"] == 0
    done = cosyd("admin", "swap", "apply", paths=state)
    assert (done.exit_code, helper.state["own_bytes"]) == (0, 8 * GIB)
    assert "8 GB" in done.stdout
    assert "as it should be" in cosyd("admin", "swap", "apply", paths=state).stdout
    smaller = cosyd("admin", "swap", "apply", "--total", "1 GiB", "--json", paths=state)
    assert json.loads(smaller.stdout)["action"] == "shrink"
    assert helper.state["own_bytes"] == GIB


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_refusal_says_what_to_do_and_ends_with_75(helper: FakeHelper, state: StatePaths, lang: str) -> None:
    helper.state |= {"obstacle": "filesystem", "filesystem": "zfs"}
    refused = cosyd("admin", "swap", "apply", paths=state, lang=lang)
    assert refused.exit_code == 75
    assert "zfs" in refused.stderr and "/var/lib/cosyd-swap" in refused.stderr
    as_json = cosyd("admin", "swap", "apply", "--json", paths=state, lang=lang)
    assert as_json.exit_code == 75
    assert json.loads(as_json.stdout)["reason"] == "filesystem"
    assert "zfs" in cosyd("admin", "swap", "status", paths=state, lang=lang).stdout
    helper.state |= {"obstacle": None}
    helper.refusal = "denied"
    assert cosyd("admin", "swap", "apply", paths=state, lang=lang).exit_code == 75


def test_without_a_helper_the_command_that_starts_it_is_shown(
    state: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap, "SOCKET", tmp_path / "none.sock")
    for word in ("status", "plan", "apply"):
        refused = cosyd("admin", "swap", word, paths=state)
        assert refused.exit_code == 75
        assert "systemctl start cosyd-swap.socket" in refused.stderr


def test_a_size_that_is_none_is_a_usage_error(state: StatePaths) -> None:
    assert cosyd("admin", "swap", "plan", "--total", "plenty", paths=state).exit_code == 2
