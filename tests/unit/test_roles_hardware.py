"""The roles on simulated machines, in check mode: class, PyTorch build, driver packages and messages.

What the pure functions decide is tabled in test_hardware_matrix.py; here it is seen to arrive in the
playbook; packages and refusals of the role are tried. Ubuntu is its os-release here; nothing was run on one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.hardwarekit import Machine
from tests.unit.rolekit import Simulated, play

INSTALL = {"nvidia_driver_policy": "install"}
REPLACE = {"nvidia_driver_policy": "replace"}

MATRIX: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # name: machine, variables; class, torch family
    "gtx970-470": ({"card": "gtx970", "driver": 470}, {}, "cpu", "cpu"),
    "gtx970-535": ({"card": "gtx970", "driver": 535}, {}, "gpu-4g", "cu126"),
    "gtx970-580": ({"card": "gtx970", "driver": 580}, {}, "gpu-4g", "cu126"),
    "gtx1650-550": ({"card": "gtx1650", "driver": 550}, {}, "gpu-4g", "cu126"),
    "gtx1650-580": ({"card": "gtx1650", "driver": 580}, {}, "gpu-4g", "cu13"),
    "rtx3050-570": ({"card": "rtx3050", "driver": 570}, {}, "gpu-6g", "cu126"),
    "rtx3060-580": ({"card": "rtx3060", "driver": 580}, INSTALL, "gpu-12g", "cu13"),
    "rtx4060-535": ({"card": "rtx4060", "driver": 535}, REPLACE, "gpu-6g", "cu126"),
    "rtx5060-570": ({"card": "rtx5060", "driver": 570}, {}, "gpu-6g", "cu128"),
    "rtx5060-550": ({"card": "rtx5060", "driver": 550}, {}, "cpu", "cpu"),
    "two-580": ({"card": "two", "driver": 580}, {}, "gpu-12g", "cu13"),
    "none": ({"card": "none"}, INSTALL, "cpu", "cpu"),
    "amd": ({"card": "amd"}, INSTALL, "cpu", "cpu"),
    "mismatch": ({"card": "rtx3060", "driver": 550, "library": 580}, REPLACE, "cpu", "cu13"),
    "told-none": ({"card": "rtx3060", "driver": 580}, {"hardware_profile_gpu": "none"}, "cpu", "cpu"),
    "told-4g": ({"card": "rtx3060", "driver": 580}, {"hardware_profile_choice": "gpu-4g"}, "gpu-4g", "cu13"),
    # A driver is wanted, and here is what for.
    "bare-3060": ({"card": "rtx3060"}, INSTALL, "cpu", "cpu"),
    "bare-970": ({"card": "gtx970"}, INSTALL, "cpu", "cpu"),
    "bare-970-13": ({"card": "gtx970", "os": "debian13"}, INSTALL, "cpu", "cpu"),
    "bare-5060": ({"card": "rtx5060"}, INSTALL, "cpu", "cpu"),
    "bare-5060-2404": ({"card": "rtx5060", "os": "ubuntu2404"}, INSTALL, "cpu", "cpu"),
    "bare-1650-2204": ({"card": "gtx1650", "os": "ubuntu2204"}, INSTALL, "cpu", "cpu"),
    "kept-3060": ({"card": "rtx3060"}, {}, "cpu", "cpu"),
    "nouveau": ({"card": "rtx3060", "nouveau": True}, INSTALL, "cpu", "cpu"),
    "signed": ({"card": "rtx3060", "secure_boot": "on"}, INSTALL, "cpu", "cpu"),
    "signed-yes": (
        {"card": "rtx3060", "secure_boot": "on"},
        {**INSTALL, "nvidia_driver_secure_boot_accepted": True}, "cpu", "cpu",
    ),
    "used": ({"card": "gtx1650", "driver": 470, "apps": "apps_jellyfin"}, REPLACE, "cpu", "cpu"),
    "used-yes": (
        {"card": "gtx1650", "driver": 470, "apps": "apps_jellyfin"},
        {**REPLACE, "nvidia_driver_confirm": "replace"}, "cpu", "cpu",
    ),
    "unknown-release": (
        {"card": "rtx3060"}, {**INSTALL, "nvidia_driver_release": "ubuntu-29.04"}, "cpu", "cpu",
    ),
    "proxmox": ({"card": "rtx3060"}, {**INSTALL, "nvidia_driver_kernel": "6.8.12-4-pve"}, "cpu", "cpu"),
    "lxc": ({"card": "none", "virt": "lxc"}, INSTALL, "cpu", "cpu"),
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One run for all."""
    folder = tmp_path_factory.mktemp("roles")
    machines = {}
    for name, (what, variables, _, _) in MATRIX.items():
        (folder / name).mkdir()
        machines[name] = Simulated(Machine(folder / name, **what), variables)
    return play(folder, machines)


def test_each_machine_gets_its_class_and_its_torch(played: dict[str, dict[str, Any]]) -> None:
    for name, (_, _, profile, family) in MATRIX.items():
        fit = played[name]["found"]["fit"]
        assert (fit["profile"], fit["torch"]["family"]) == (profile, family), name


def test_h08_an_old_card_gets_the_last_torch_that_has_kernels_for_it(
    played: dict[str, dict[str, Any]],
) -> None:
    torch = played["gtx970-580"]["found"]["fit"]["torch"]
    assert torch["requirement"].endswith("<2.15") and torch["index"].endswith("/cu126")


def test_a_driver_that_works_is_never_touched(played: dict[str, dict[str, Any]]) -> None:
    for name, (what, _, _, _) in MATRIX.items():
        if what.get("driver") and not name.startswith("used"):
            assert not played[name]["act"], name
            assert played[name]["packages"] == [] and played[name]["refused"] == "", name


def test_without_being_asked_nothing_is_installed(played: dict[str, dict[str, Any]]) -> None:
    assert not played["kept-3060"]["act"]
    assert played["kept-3060"]["found"]["driver"]["action"] == "install"  # said, not done


def test_without_a_card_or_in_a_container_there_is_no_driver_to_install(
    played: dict[str, dict[str, Any]],
) -> None:
    assert [played[name]["act"] for name in ("none", "amd", "lxc")] == [False] * 3


def test_h08_card_and_release_decide_the_packages(played: dict[str, dict[str, Any]]) -> None:
    assert "nvidia-kernel-dkms" in played["bare-970"]["packages"]
    assert "nvidia-kernel-dkms" in played["bare-970-13"]["packages"]
    assert "linux-headers-amd64" in played["bare-3060"]["packages"]
    assert "nvidia-headless-580-server-open" in played["bare-5060-2404"]["packages"]
    assert "nvidia-headless-580-server" in played["bare-1650-2204"]["packages"]
    assert "linux-headers-generic" in played["bare-1650-2204"]["packages"]
    assert "nvidia-kernel-dkms" in played["nouveau"]["packages"]


def test_h03_a_proxmox_kernel_gets_its_own_headers(played: dict[str, dict[str, Any]]) -> None:
    assert "proxmox-default-headers" in played["proxmox"]["packages"]


def test_a_card_newer_than_the_archives_driver_is_refused_with_the_way(
    played: dict[str, dict[str, Any]],
) -> None:
    refused = played["bare-5060"]["refused"]
    assert "535" in refused and "570+" in refused and "docs.nvidia.com" in refused
    assert played["bare-5060"]["packages"] == []


def test_h06_an_unknown_release_fails_early_with_those_that_are_known(
    played: dict[str, dict[str, Any]],
) -> None:
    refused = played["unknown-release"]["refused"]
    assert "ubuntu-29.04" in refused and "debian-12" in refused and "ubuntu-24.04" in refused
    assert played["unknown-release"]["packages"] == []


def test_secure_boot_is_explained_before_anything_starts(played: dict[str, dict[str, Any]]) -> None:
    assert "MOK" in played["signed"]["refused"] and played["signed"]["packages"] == []
    assert played["signed-yes"]["refused"] == "" and played["signed-yes"]["packages"]


def test_those_who_would_lose_the_card_are_named_and_the_word_is_wanted(
    played: dict[str, dict[str, Any]],
) -> None:
    assert "ffmpeg" in played["used"]["refused"] or "jellyfin" in played["used"]["refused"].lower()
    assert "nvidia_driver_confirm=replace" in played["used"]["refused"]
    assert played["used-yes"]["refused"] == "" and "nvidia-kernel-dkms" in played["used-yes"]["packages"]
