"""The units in systemd/: what systemd-analyze says of them, and what must never stand in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = ("cosyd.service", "cosyd-swap.service")
NAMES = (*SERVICES, "cosyd-swap.socket")
EXPOSURE = {"cosyd.service": 2.2, "cosyd-swap.service": 1.5}
"""At most."""
BLINDING = (
    "ProcSubset",
    "ProtectProc",
    "ProtectControlGroups",
    "MemoryDenyWriteExecute",
    "PrivateUsers",
    "PrivateDevices",
)


def settings(name: str) -> dict[str, list[str]]:
    """Key -> its values, in order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text("utf-8").splitlines():
        if match := re.match(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """systemd-analyze, which needs no running systemd for this."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (Debian package systemd)")
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_COLORS": "0", "SYSTEMD_EMOJI": "0", "LC_ALL": "C.UTF-8"},
    )


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in NAMES:
        text = (UNITS / name).read_text("utf-8")
        # Whether the programs are there is a matter of the installation.
        (tmp_path / name).write_text(re.sub(r"/opt/cosyd/venv/bin/\w+", str(program), text), encoding="utf-8")
    done = analyze("verify", "--man=no", *(str(tmp_path / name) for name in NAMES))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr, done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_the_exposure_stays_below_its_limit(name: str) -> None:
    done = analyze("security", "--offline=yes", "--no-pager", str(UNITS / name))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE[name], done.stdout


def test_nothing_blinds_the_guard_or_breaks_torch() -> None:
    assert [key for key in BLINDING if key in settings("cosyd.service")] == []


def test_what_the_guard_relies_on_is_there() -> None:
    found = settings("cosyd.service")
    assert found["Type"] == ["notify"]
    assert found["KillMode"] == ["mixed"]
    assert found["LimitCORE"] == ["0"]
    assert found["OOMPolicy"] == ["continue"]
    assert found["OOMScoreAdjust"] == ["-300"]
    assert found["ExecStartPre"] == ["-+/usr/bin/nvidia-modprobe -c 0 -u"]
    assert "78" in found["RestartPreventExitStatus"][0].split()
    assert int(found["WatchdogSec"][0]) > 0
    from pipeline.profile import Config

    assert int(found["TimeoutStopSec"][0]) >= 2 * Config().deadlines.stop_grace_s
    burst, every = int(found["StartLimitBurst"][0]), int(found["StartLimitIntervalSec"][0])
    assert burst * int(found["RestartSec"][0]) < every  # else it would start for ever (systemd 30804)


def test_the_swap_socket_is_out_of_the_services_reach() -> None:
    listening = Path(settings("cosyd-swap.socket")["ListenStream"][0])
    runtime = Path("/run") / settings("cosyd.service")["RuntimeDirectory"][0]
    assert listening.parent != runtime and runtime not in listening.parents
    assert settings("cosyd-swap.socket")["SocketUser"] == ["root"]


def test_the_shipped_limits_are_ones_that_the_helper_takes() -> None:
    from daemon.swap.helper import Limits
    from pipeline.profile import Config

    limits = Limits(**tomllib.loads((UNITS / "swap.toml").read_text("utf-8")))
    assert limits.max_bytes >= Config().swap_bytes
    assert settings("cosyd.service")["User"] == [limits.user]


def test_each_restriction_says_what_it_is_for() -> None:
    """A comment stands above every block of settings."""
    for name in NAMES:
        for block in re.split(r"\n(?=#|\n)", (UNITS / name).read_text("utf-8").split("[Service]")[-1]):
            lines = [line for line in block.splitlines() if line.strip()]
            if any(re.match(r"(Protect|Private|Restrict|SystemCall|Capability|OOM|Limit)", x) for x in lines):
                assert lines[0].startswith("#") or "[" in lines[0], f"{name}: {block}"
