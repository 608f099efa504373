"""Ansible for tests: where it is, the package as a wheel, and simulated machines as hosts of one inventory.

A simulated machine is a folder with the files of one (`hardwarekit.Machine`) and a folder of commands that
say what that machine's would say. The roles run on this computer, in check mode, and look there.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon.hardware import nvidia
from tests.unit.hardwarekit import Machine

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE = ROOT / "ansible"
PLACES = (os.environ.get("PROVISION_VENV", ""), str(ROOT / ".venv-provision"))
ASKED = (
    ("lspci", "-nn", "-vmm", "-k"),
    ("systemd-detect-virt",),
    ("mokutil", "--sb-state"),
    ("timedatectl", "show", "--property=NTPSynchronized", "--value"),
    ("nvidia-smi",),
    tuple(nvidia.query(nvidia.FIELDS)),
    *(tuple(nvidia.query(("uuid", name))) for name in nvidia.NEWER_FIELDS),
    tuple(nvidia.query_apps()),
)
"""All that the reader of facts runs."""
PLAYBOOK = """
- name: Simulated machines
  hosts: cosyd
  gather_facts: false
  environment: {PATH: "{{ commands }}:{{ lookup('env', 'PATH') }}"}
  tasks:
    - name: Run the roles
      block:
        - name: Look
          ansible.builtin.include_role: {name: hardware_profile}
        - name: See to the driver
          ansible.builtin.include_role: {name: nvidia_driver}
        - name: See to CUDA
          ansible.builtin.include_role: {name: cuda}
      rescue:
        - name: Keep the reason
          ansible.builtin.set_fact:
            refused: "{{ ansible_failed_result.msg }}"
    - name: Write down what came of it
      check_mode: false
      changed_when: false
      ansible.builtin.copy:
        dest: "{{ answer }}"
        mode: "0600"
        content: "{{ {'found': hardware_profile_found | default({}),
          'act': nvidia_driver_act | default(false), 'packages': nvidia_driver_packages | default([]),
          'refused': refused | default('')} | to_json }}"
"""


def tool(name: str) -> str:
    """A program of the provisioning venv. Skips the test where there is none."""
    for place in filter(None, PLACES):
        if (Path(place) / "bin" / name).exists():
            return str(Path(place) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: python3 -m venv .venv-provision, and the extra `provision` in it")
    return found


def wheel(folder: Path) -> Path:
    """The package, as far as hardware is concerned, without building it: a wheel is a zip file."""
    path = folder / "cosyd-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for package in ("daemon", "pipeline"):
            for source in sorted((ROOT / package).rglob("*")):
                if source.suffix in (".py", ".toml"):
                    file.write(source, source.relative_to(ROOT))
    return path


@dataclass
class Simulated:
    """A machine and what was asked for. `facts` are variables of the roles."""

    machine: Machine
    variables: Mapping[str, Any] = field(default_factory=dict)

    def commands(self, folder: Path) -> None:
        """Scripts that answer as the machine's programs do; what it lacks answers as nobody."""
        folder.mkdir()
        cases: dict[str, list[str]] = {}
        for argv in ASKED:
            ran = self.machine.run(argv)
            lines = cases.setdefault(argv[0], [])
            if ran is not None:
                words, out = shlex.quote(shlex.join(argv[1:])), shlex.quote(ran.out)
                lines.append(f"{words}) printf %s {out}; exit {ran.status};;")
        for name, lines in cases.items():
            if lines:
                body = "\n".join(['case "$*" in', *lines, "esac", "exit 9"])
                (folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
                (folder / name).chmod(0o755)


def play(folder: Path, machines: Mapping[str, Simulated]) -> dict[str, dict[str, Any]]:
    """The roles on all of them in one run; for each what was found, done and refused."""
    program = tool("ansible-playbook")
    package = wheel(folder)
    hosts = {}
    for name, machine in machines.items():
        machine.commands(folder / f"{name}-commands")
        hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/usr/bin/python3",
            "commands": str(folder / f"{name}-commands"),
            "answer": str(folder / f"{name}.json"),
            "hardware_profile_wheel": str(package),
            "hardware_profile_root": str(machine.machine.root),
            **machine.variables,
        }
    (folder / "inventory.json").write_text(json.dumps({"cosyd": {"hosts": hosts}}), encoding="utf-8")
    (folder / "inventory.yml").write_text((folder / "inventory.json").read_text("utf-8"), encoding="utf-8")
    (folder / "play.yml").write_text(PLAYBOOK, encoding="utf-8")
    done = subprocess.run(
        [program, "-i", str(folder / "inventory.yml"), "--check", "--forks", "4", str(folder / "play.yml")],
        env={
            **os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles"), "ANSIBLE_HOME": str(folder / "home"),
            "LC_ALL": "C.UTF-8",
        },
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert "unreachable=1" not in done.stdout and "failed=1" not in done.stdout, (
        done.stdout[-6000:] + done.stderr
    )
    return {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in machines}
