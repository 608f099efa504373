"""In a machine of its own: a real kernel with cgroup v2, the installed units, real swap, memory leaked.

It is booted once, and does all of it in one go; each test looks at its part. 1.5 GB of RAM. The memory part
takes half an hour and more without KVM: it runs with `--long`.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.engines.numbers import decode
from tests.system.vm import run_scenario

pytestmark = [pytest.mark.root, pytest.mark.timeout(15_000)]
MIB = 1024**2
LIMITS = f'user = "cosyd"\nmax_bytes = {1024 * MIB}\nkeep_free_bytes = {256 * MIB}\n'
CONFIG = """
swap_bytes = "300 MiB"
timeout_factor = 3.0
keep_alive = "10 min"
[engines.extra]
numbers = "tests.engines.numbers:NumbersEngine"
"""
BESIDE = [Path(__file__).with_name(f"vm_{name}_scenario.py") for name in ("swap", "memory")]
SCENARIO = """
import json, subprocess, time, traceback
from pathlib import Path
import vm_memory_scenario as memory, vm_swap_scenario as swap

found, took, began = {}, {}, time.monotonic()
def part(name, work):
    start = time.monotonic()
    work()
    took[name] = round(time.monotonic() - start, 1)
    print(name, took[name], flush=True)
try:
    part("swap", lambda: swap.swap_by_hand(found))
    memory.prepare()
    part("start", lambda: swap.service(found))
    if plan := %(plan)r:
        part("memory", lambda: memory.run(found, plan))
    found["stopped"] = subprocess.run(["systemctl", "stop", "cosyd"]).returncode
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    found["oom kills"] = [line for line in log.splitlines() if "Killed process" in line]
except BaseException:
    found["error"] = traceback.format_exc()
    log = subprocess.run(["journalctl", "-q", "-o", "cat", "-u", "cosyd*"], capture_output=True, text=True)
    found["journal"] = log.stdout[-20000:]
found["took"] = took
Path("/root/result.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, long: bool) -> dict[str, Any]:
    """What came out of the machine."""
    plan = [(20, 20, 200), (200, 200, 40)] if long else []
    result = run_scenario(
        tmp_path_factory.mktemp("vm"), SCENARIO % {"plan": plan}, beside=BESIDE, config=CONFIG, limits=LIMITS,
        timeout_s=14_000 if long else 2400,
    )  # fmt: skip
    assert "error" not in result, f"{result['error']}\n{result['journal']}"
    return result


def heard(spoken: dict[str, Any]) -> list[int]:
    """The numbers of a generation."""
    return decode(zlib.decompress(base64.b64decode(spoken["sound"])))


def of_kind(part: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    """Its events of these kinds."""
    return [event for event in part["events"] if event["kind"] in kinds]


def delivered_without_the_oom_killer(part: dict[str, Any]) -> None:
    """Every generation, once, whole; and the kernel had to end nobody."""
    assert [heard(spoken) for spoken in part["spoken"]] == [[n + 1] for n in range(len(part["spoken"]))]
    assert part["oom_kills"] == 0
    assert not [e for e in of_kind(part, "worker_exited") if e["params"]["reason"].startswith("oom_kill")]
    assert not of_kind(part, "failed")


def test_swap_by_the_installed_units_e05_included(found: dict[str, Any]) -> None:
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
    assert found["cgroup"] == "0::/system.slice/cosyd.service/supervisor"


@pytest.mark.slow
def test_the_children_live_in_memory_groups_of_their_own(found: dict[str, Any]) -> None:
    webs = [name for name in found["groups"] if name.startswith("web-")]
    assert len(webs) == 1 and found["groups"][webs[0]]["cgroup.procs"], found["groups"]
    assert "supervisor" in found["groups"]
    used = found["groups in use"]
    assert any(name.startswith("worker-") and group["cgroup.procs"] for name, group in used.items()), used
    assert all(int(group["memory.peak"]) > 10 * MIB for name, group in used.items())
    assert found["reloaded"] == 0, "systemd's own commands find a place beside the groups"
    # After a restart by systemd there is the same again, and nothing of before.
    assert found["active"] == "active" and "supervisor" in found["groups again"]
    assert not set(found["groups again"]) & (set(used) - {"supervisor"})


@pytest.mark.slow
def test_an_engine_that_leaks_is_restarted_before_memory_runs_out_and_every_word_is_said(
    found: dict[str, Any],
) -> None:
    for part in found["worker leaks"]:
        delivered_without_the_oom_killer(part)
        ends = of_kind(part, "worker_exited")
        assert ends and all(e["params"]["child"] == "worker:numbers" for e in ends), ends
        assert all(e["params"]["reason"].startswith("memory_") for e in ends), ends
        assert of_kind(part, "unloaded", "drain_started", "worker_killed"), "each is told, with its numbers"
        assert all(e["ram_available_bytes"] for e in ends)
        assert all(e["params"]["peak_bytes"] > 100 * MIB for e in ends), ends


@pytest.mark.slow
def test_a_page_that_leaks_is_restarted_before_memory_runs_out_and_every_word_is_said(
    found: dict[str, Any],
) -> None:
    for part in found["web leaks"]:
        delivered_without_the_oom_killer(part)
        assert [
            e
            for e in of_kind(part, "web_recycled", "worker_killed")
            if e["params"].get("child") == "web" and str(e["params"]["reason"]).startswith("memory_")
        ], part["events"]


@pytest.mark.slow
def test_a_greedy_neighbour_is_named_refused_for_and_outlived(found: dict[str, Any]) -> None:
    part = found["foreign"]
    told = of_kind(part, "foreign_pressure")[0]
    assert told["params"]["name"] == "greedy.py", told
    assert abs(told["params"]["bytes"] - part["size"]) < 100 * MIB
    assert (part["status"], part["level"]) == (503, "critical"), part
    assert int(part["headers"]["retry-after"]) > 0 and "greedy.py" in part["body"], part
    assert not of_kind(part, "worker_killed", "web_recycled", "failed", "worker_exited"), part["events"]
    assert set(part["restarts"].values()) == {0}
    assert part["oom_kills"] == 0
    assert heard(part["after"]) == [6], "it came back by itself"


@pytest.mark.slow
def test_a_worker_that_the_kernel_ended_is_told_as_that_and_its_text_is_said(found: dict[str, Any]) -> None:
    part = found["killed"]
    assert heard(part["spoken"]) == [8]
    (ended,) = [e for e in of_kind(part, "worker_exited") if e["params"]["status"] == "signal 9"]
    assert (ended["params"]["reason"], ended["code"]) == ("oom_kill", "out_of_memory"), ended
    assert of_kind(part, "job_requeued")
    assert len(found["oom kills"]) == 1, found["oom kills"]
