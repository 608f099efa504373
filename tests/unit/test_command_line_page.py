"""docs/command-line.md is a contract: its commands, exit statuses and JSON fields are the real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from daemon.cli.frame import Command, text
from daemon.cli.main import EXIT_STATUSES
from pipeline.codes import CODES
from pipeline.events import Event, insert_events
from pipeline.paths import StatePaths
from pipeline.pronunciations import add_entry, parse_entry
from tests.unit.storekit import NOW, opened
from tests.unit.test_cli import ALL, cosyd

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")
LEAVES = {
    " ".join(("cosyd", *path)): command
    for path, command in ALL.items()
    if not isinstance(command, click.Group) or command.invoke_without_command
}


def section(title: str) -> dict[str, tuple[str, ...]]:
    """Rows of the table below a heading: the first cell without its code marks, and the others."""
    part = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [tuple(cell.strip() for cell in row) for row in re.findall(r"(?m)^\| (.+?) \| (.+) \|$", part)]
    return {
        head.strip("`"): tuple(rest.split(" | "))
        for head, rest in rows
        if head not in ("", "command") and not head.startswith("-")
    }


def test_the_page_lists_every_command_with_its_help_and_example() -> None:
    told = {}
    for name, command in LEAVES.items():
        assert isinstance(command, Command)
        told[name] = (text(command.help_key), f"`{command.example}`")
    assert section("Commands") == told, "docs/command-line.md has other rows than the commands' own help"


def test_the_page_tells_the_exit_statuses_and_the_codes_have_no_others() -> None:
    assert section("Exit status") == {str(n): (text(f"exit_{n}"),) for n in EXIT_STATUSES}
    assert {info.exit_status for info in CODES.values()} <= set(EXIT_STATUSES)
    shown = cosyd("--help").stdout
    assert all(re.search(rf"(?m)^  {n} +\w", shown) for n in EXIT_STATUSES)


def test_json_is_described_for_exactly_the_commands_that_take_it() -> None:
    taking = {name for name, c in LEAVES.items() if any(p.name == "as_json" for p in c.params)}
    assert set(section("JSON")) == taking


def fields(name: str) -> set[str]:
    """The fields of the value that the page promises for a command."""
    told = section("JSON")[name][0].split(";")[0].split("(")[0]
    return set(re.findall(r"`(\w+)`", told))


@pytest.mark.parametrize(
    ("name", "words", "status"),
    [
        ("cosyd status", (), 75),
        ("cosyd why", (), 0),
        ("cosyd voices", (), 0),
        ("cosyd voices styles", (), 0),
        ("cosyd dictionary list", (), 0),
        ("cosyd dictionary add", ("SQL", "sequel"), 0),
        ("cosyd model check", (), 75),
        ("cosyd model info", (), 0),
        ("cosyd login-link", (), 0),
        ("cosyd key add", ("lamp",), 0),
        ("cosyd key list", (), 0),
        ("cosyd admin profile explain", (), 0),
        ("cosyd doctor", (), None),
    ],
)
def test_the_json_of_a_command_has_the_fields_that_the_page_promises(
    paths: StatePaths, name: str, words: tuple[str, ...], status: int | None
) -> None:
    conn = opened(paths)
    add_entry(conn, parse_entry("GUI", "gooey", ""))
    insert_events(conn, [Event(at=NOW, kind="trim_done", params={}, freed_bytes=1)])
    conn.close()
    cosyd("key", "add", "first", paths=paths)
    named = any(param.name == "paths" for param in LEAVES[name].params)
    done = cosyd(*name.split()[1:], *words, "--json", paths=paths if named else None)
    assert status is None or done.exit_code == status, done.stderr
    value: Any = json.loads(done.stdout)
    found = value[0] if isinstance(value, list) else value
    promised = (
        fields(name) - {"level", "ram", "vram", "engines", "web", "pressure", "profile"}
        if (name == "cosyd status")
        else fields(name)
    )  # the rest while it runs
    assert promised <= set(found)


def test_a_configuration_is_judged_for_programs_too(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("keep_alive = '5 min'\n")
    bad.write_text("keep_alive = 'soon'\nkep = 1\n")
    done = cosyd("admin", "profile", "check", str(good), "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"file": str(good), "problems": []})
    done = cosyd("admin", "profile", "check", str(bad), "--json", lang="zh")
    told = json.loads(done.stdout)
    assert (done.exit_code, set(told), len(told["problems"])) == (78, fields("cosyd admin profile check"), 2)
    assert told["problems"][0]["what"] == "not_duration"
    assert "不是时长" in told["problems"][0]["text"]
