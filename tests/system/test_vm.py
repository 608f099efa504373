"""In a machine of its own: a real kernel with cgroup v2, the installed units, swap made for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.vm import run_scenario

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]
MIB = 1024**2
LIMITS = f'user = "cosyd"\nmax_bytes = {1024 * MIB}\nkeep_free_bytes = {256 * MIB}\n'
CONFIG = 'swap_bytes = "300 MiB"\n'
SCENARIO = Path(__file__).with_name("vm_swap_scenario.py")


def test_swap_by_the_installed_units_e05_included(tmp_path: Path) -> None:
    script = SCENARIO.read_text("utf-8")
    found = run_scenario(tmp_path, script, config=CONFIG, limits=LIMITS, memory_mb=1024, timeout_s=1200)
    assert "error" not in found, found
    assert found["before"]["helper"] is True, found
    assert found["before"]["filesystem"] == "ext4"
    assert (found["grown"]["action"], found["grown"]["own_bytes"]) == ("grow", 600 * MIB)
    # Under its real name, which a private mount of the helper would hide.
    assert "/var/lib/cosyd-swap/swap-00" in found["swaps"]
    assert "Result=success" in found["unit"]
    assert found["other user"] == 75
    assert found["swapped_bytes"] > 100 * MIB
    refused = found["shrink refused"]
    assert (refused["action"], refused["reason"], refused["exit"]) == ("refuse", "ram_short", 75)
    assert "/var/lib/cosyd-swap/swap-00" in found["still there"]
    assert (found["shrunk"]["action"], found["shrunk"]["own_bytes"]) == ("shrink", 0)
    assert found["left"] == ["last-change"]
    assert "cosyd-swap" not in found["after"]
    # The service, as user cosyd, got the swap of its profile by itself.
    assert (found["started"], found["stopped"]) == (0, 0), found["journal"]
    assert "/var/lib/cosyd-swap/swap-00" in found["by the service"], found["journal"]
    assert "swap_grown" in found["journal"]
    assert found["oom score"] == "-300"
    assert found["cgroup"].startswith("0::/system.slice/cosyd.service")
    assert found["oom kills"] == []
