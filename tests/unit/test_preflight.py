"""What the installer says before it changes anything, on simulated machines."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.hardware.facts import Facts
from daemon.hardware.preflight import (
    BASE,
    E_DISK,
    E_PORT,
    E_SYSTEM,
    GB,
    MODEL,
    TORCH_CUDA,
    Statement,
    Wish,
    preflight,
)
from pipeline.messages import catalogue, render
from tests.unit.hardwarekit import Look, Machine, look

ROOT = Path(__file__).parents[2]
NOTHING_SPECIAL = Wish()


def said(seen: Look, wish: Wish = NOTHING_SPECIAL, facts: Facts | None = None) -> list[Statement]:
    """The report; fails where a text is missing or has a hole in either language."""
    found = preflight(facts or seen.facts, seen.fit, seen.advice, wish)
    for statement in found:
        key = statement.key if "." in statement.key else f"install.{statement.key}"
        for language in ("en", "zh"):
            assert key in catalogue(language), key  # type: ignore[arg-type]
            assert "?" not in render(key, language, statement.params), key  # type: ignore[arg-type]
    return found


def keys(statements: list[Statement], kind: str) -> list[str]:
    return [s.key for s in statements if s.kind == kind]


def test_a_bare_machine_without_a_card(tmp_path: Path) -> None:
    found = said(look(Machine(tmp_path)))
    assert keys(found, "stop") == []
    assert keys(found, "cannot") == ["cannot_clone"]
    sizes = next(s for s in found if s.key == "do_sizes")
    assert (sizes.params["download"], sizes.params["disk"]) == (BASE.download, BASE.disk)


def test_a_card_its_torch_and_the_model_with_what_they_weigh(tmp_path: Path) -> None:
    found = said(look(Machine(tmp_path, "rtx3060", 580)), Wish(cosyvoice=True))
    assert {"torch.newest", "driver.works", "fit.by_card"} <= set(keys(found, "found"))
    assert {"do_torch", "do_model", "do_class"} <= set(keys(found, "do"))
    sizes = next(s for s in found if s.key == "do_sizes")
    assert sizes.params["download"] == BASE.download + TORCH_CUDA.download + MODEL.download
    copied = said(look(Machine(tmp_path / "b", "rtx3060", 580)), Wish(cosyvoice=True, model_dir="/srv/model"))
    assert "do_model_copied" in keys(copied, "do")
    assert next(s for s in copied if s.key == "do_sizes").params["download"] < 4 * GB


def test_a_driver_is_spoken_of_and_installed_only_when_that_was_asked(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060"))
    kept = said(seen)
    assert "driver.absent" in keys(kept, "found") and "do_driver" not in keys(kept, "do")
    assert "do_driver" in keys(said(seen, Wish(driver="install")), "do")


def test_secure_boot_is_told_before_a_driver_is_installed(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060", secure_boot="on"))
    assert "cannot_secure_boot" in keys(said(seen, Wish(driver="install")), "cannot")
    assert "cannot_secure_boot" not in keys(said(seen), "cannot")


def test_cloning_on_the_processor_says_what_would_be_better(tmp_path: Path) -> None:
    found = said(look(Machine(tmp_path, "gtx970", 470)), Wish(cosyvoice=True))
    assert "torch.cure_driver_too_old" in keys(found, "cannot")


def test_a_container_leaves_driver_and_swap_to_its_host(tmp_path: Path) -> None:
    found = said(look(Machine(tmp_path, virt="lxc")))
    assert "found_container" in keys(found, "found")
    assert "cannot_swap" in keys(found, "cannot") and "do_swap" not in keys(found, "do")


@pytest.mark.parametrize(
    ("change", "wish", "status"),
    [
        ({"os_id": "fedora", "os_version": "41"}, Wish(), E_SYSTEM),
        ({"os_id": "ubuntu", "os_version": "23.10"}, Wish(), E_SYSTEM),
        ({"port_free": False, "port_holder": "jellyfin (812)"}, Wish(), E_PORT),
        ({"disk_free_bytes": 1 * GB}, Wish(), E_DISK),
        ({"disk_free_bytes": 8 * GB}, Wish(cosyvoice=True), E_DISK),
        ({}, Wish(opt_free_bytes=1 * GB), E_DISK),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_stops_it(
    tmp_path: Path, change: dict[str, object], wish: Wish, status: int
) -> None:
    seen = look(Machine(tmp_path, "rtx3060", 580))
    found = said(seen, wish, replace(seen.facts, **change))  # type: ignore[arg-type]
    assert [s.status for s in found if s.kind == "stop"] == [status]


def test_an_installation_that_is_there_needs_neither_its_port_nor_its_room_again(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path))
    facts = replace(seen.facts, port_free=False, port_holder="python (99)", disk_free_bytes=100 * 1024**2)
    found = said(seen, Wish(installed=True), facts)
    assert keys(found, "stop") == [] and "found_installed" in keys(found, "found")


def test_the_command_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    root = str(Machine(tmp_path).root)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "daemon.preflight", "--port", "1", "--root", root],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "LANG": "zh_CN.UTF-8", "PYTHONUTF8": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, E_DISK), done.stderr
    assert "将要做的事：" in done.stdout
