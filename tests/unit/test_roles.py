"""The roles as they are written: one interface each, told in their README, in both languages; syntax."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.booted import UNITS
from tests.unit.rolekit import ANSIBLE, tool

ROLES = ("hardware_profile", "nvidia_driver", "cuda", "cosyd", "swap", "model")


def read(role: str, name: str) -> Any:
    return yaml.safe_load((ANSIBLE / "roles" / role / name).read_text("utf-8"))


def test_there_is_no_python_in_here() -> None:
    assert list(ANSIBLE.rglob("*.py")) == []


@pytest.mark.parametrize("role", ROLES)
def test_the_defaults_are_the_whole_interface(role: str) -> None:
    options = read(role, "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = read(role, "defaults/main.yml")
    assert set(options) - {"cosyd_wheel"} == set(defaults)
    for name, option in options.items():
        if "default" in option:
            assert option["default"] == defaults[name], name
    readme = (ANSIBLE / "roles" / role / "README.md").read_text("utf-8")
    assert [name for name in options if f"| `{name}` |" not in readme] == []
    assert "Tested by `" in readme


@pytest.mark.parametrize("role", ROLES)
def test_both_languages_say_the_same(role: str) -> None:
    path = ANSIBLE / "roles" / role / "vars/main.yml"
    if not path.exists():
        return
    texts = read(role, "vars/main.yml")[f"{role}_texts"]
    assert texts["en"].keys() == texts["zh"].keys()
    for key, text in texts["zh"].items():
        assert re.search(r"[\u4e00-\u9fff]", text), key
        assert not re.search(r"[\u4e00-\u9fff][A-Za-z0-9`{]|[A-Za-z0-9`}][\u4e00-\u9fff]", text), key
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", texts["en"][key])), key
        assert not re.search(r"[\u4e00-\u9fff]", texts["en"][key]), key
    tasks = "".join(p.read_text("utf-8") for p in (ANSIBLE / "roles" / role / "tasks").glob("*.yml"))
    assert [key for key in texts["en"] if not re.search(rf"\.{key}\b", tasks)] == []


def test_every_file_of_systemd_has_its_place_and_only_root_writes_it() -> None:
    """The roles lay them where the tests of the units do."""
    tasks = "".join(p.read_text("utf-8") for p in ANSIBLE.glob("roles/*/tasks/*.yml"))
    places = set(re.findall(r'dest: "?(/[^"\n]+)', tasks))
    for source, target in UNITS.items():
        name = Path(source).name
        kind = name.split(".")[1]
        named = {
            f"/{target}",
            f"/{target}".replace(kind, "{{ item }}"),
            str(Path(f"/{target}").parent) + "/{{ item }}",
        }
        assert named & places, source


def test_no_file_is_written_without_saying_who_may_write_it() -> None:
    for path in ANSIBLE.glob("roles/*/tasks/*.yml"):
        for task in yaml.safe_load(path.read_text("utf-8")):
            for one in [task, *task.get("block", [])]:
                for module in ("copy", "template"):
                    if arguments := one.get(f"ansible.builtin.{module}"):
                        assert "mode" in arguments, one["name"]


def test_h07_every_call_that_takes_the_package_lock_waits_for_it() -> None:
    for path in ANSIBLE.glob("roles/*/tasks/*.yml"):
        text = path.read_text("utf-8")
        assert "ansible.builtin.apt:" not in text, "its own call for python3-apt does not wait"
        for call in re.findall(r".*'apt-get', '-y'.*|argv: .*apt-get.*(?:install|purge|autoremove).*", text):
            assert "DPkg::Lock::Timeout" in call or "cosyd_apt_wait_s" in call, call


def run(*words: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(tool(words[0])).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    return subprocess.run(words, cwd=ANSIBLE, env=environment, capture_output=True, text=True, timeout=250)


def test_the_playbooks_are_well_formed() -> None:
    done = run(
        "ansible-playbook", "--syntax-check", "-i", "inventory.example.yml", "site.yml", "uninstall.yml"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_yamllint_finds_nothing() -> None:
    done = run("yamllint", "-s", ".")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", ["provisioning", "hardware", "proxmox", "troubleshooting"])
def test_what_the_guides_name_exists(page: str) -> None:
    text = (ANSIBLE.parent / "docs" / f"{page}.md").read_text("utf-8")
    options = {name for role in ROLES for name in read(role, "defaults/main.yml")}
    named = set(re.findall(rf"\b(?:{'|'.join(ROLES)})_[a-z_]+\b", text)) - {"cosyd_root"}
    assert named <= options, named - options
    usage = subprocess.run(
        ["bash", str(ANSIBLE.parent / "install.sh"), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for line in re.findall(r"\./install\.sh[^`\n#]*", text):
        assert all(option in usage for option in re.findall(r"--[a-z][a-z-]+", line)), line
    for path in re.findall(r"`(tests/[\w/.*]+)`", text):
        assert list(ANSIBLE.parent.glob(path)), path
