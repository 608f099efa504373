"""Simulated machines: from what lspci, nvidia-smi and mokutil print to class, torch, driver and words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daemon.cli import checkup_card
from daemon.cli.checkup import Check
from daemon.hardware.facts import Driver, Facts, Gpu, Holder
from daemon.hardware.fit import fit, suited_profile
from pipeline.messages import catalogue, render
from pipeline.planning.torch_build import TorchBuild
from pipeline.profile import PROFILES
from tests.unit.hardwarekit import Look, Machine, look, torch_check

MIB, GIB = 1024**2, 1024**3


def words(check: Check, language: str) -> str:
    """What a person reads; fails where a text is missing or has a hole."""
    said = []
    for key in filter(None, (check.text, check.cure)):
        key = key if "." in key else f"doctor.{key}"
        assert key in catalogue(language), key  # type: ignore[arg-type]
        said.append(render(key, language, check.params))  # type: ignore[arg-type]
    assert "?" not in "".join(said).replace("? °C", ""), said
    return "\n".join(said)


def told(seen: Look) -> None:
    """Every sentence about this machine is there, in both languages, without a hole."""
    for language in ("en", "zh"):
        words(seen.card, language)
        for key, params in (
            (f"torch.{seen.fit.torch.reason}", seen.fit.torch.params),
            (f"fit.{seen.fit.reason}", seen.fit.params),
            (f"driver.{seen.advice.reason}", seen.advice.params),
        ):
            assert "?" not in render(key, language, params), (key, params)  # type: ignore[arg-type]
            assert key in catalogue(language)  # type: ignore[arg-type]


MATRIX = [
    # card, driver branch: class, torch family, why; verdict on the card; what to do about the driver
    ("gtx970", 470, "cpu", "cpu", "driver_too_old", "warn", "replace"),
    ("gtx970", 535, "gpu-4g", "cu126", "older_card", "ok", "keep"),
    ("gtx970", 550, "gpu-4g", "cu126", "older_card", "ok", "keep"),
    ("gtx970", 570, "gpu-4g", "cu126", "older_card", "ok", "keep"),
    ("gtx970", 580, "gpu-4g", "cu126", "older_card", "ok", "keep"),
    ("gtx970", 595, "cpu", "cpu", "driver_too_new", "warn", "replace"),
    ("gtx1060", 580, "gpu-6g", "cu126", "older_card", "ok", "keep"),
    ("gtx1650", 470, "cpu", "cpu", "driver_too_old", "warn", "replace"),
    ("gtx1650", 535, "gpu-4g", "cu126", "older_driver", "ok", "keep"),
    ("gtx1650", 550, "gpu-4g", "cu126", "older_driver", "ok", "keep"),
    ("gtx1650", 570, "gpu-4g", "cu126", "older_driver", "ok", "keep"),
    ("gtx1650", 580, "gpu-4g", "cu13", "newest", "ok", "keep"),
    ("rtx3050", 470, "cpu", "cpu", "driver_too_old", "warn", "replace"),
    ("rtx3050", 535, "gpu-6g", "cu126", "older_driver", "ok", "keep"),
    ("rtx3050", 570, "gpu-6g", "cu126", "older_driver", "ok", "keep"),
    ("rtx3050", 580, "gpu-6g", "cu13", "newest", "ok", "keep"),
    ("rtx3060", 470, "cpu", "cpu", "driver_too_old", "warn", "replace"),
    ("rtx3060", 535, "gpu-12g", "cu126", "older_driver", "ok", "keep"),
    ("rtx3060", 550, "gpu-12g", "cu126", "older_driver", "ok", "keep"),
    ("rtx3060", 580, "gpu-12g", "cu13", "newest", "ok", "keep"),
    ("rtx4060", 470, "cpu", "cpu", "driver_too_old", "warn", "replace"),
    ("rtx4060", 535, "gpu-6g", "cu126", "older_driver", "ok", "keep"),
    ("rtx4060", 570, "gpu-6g", "cu126", "older_driver", "ok", "keep"),
    ("rtx4060", 580, "gpu-6g", "cu13", "newest", "ok", "keep"),
    ("rtx5060", 470, "cpu", "cpu", "driver_old_for_card", "warn", "replace"),
    ("rtx5060", 535, "cpu", "cpu", "driver_old_for_card", "warn", "replace"),
    ("rtx5060", 550, "cpu", "cpu", "driver_old_for_card", "warn", "replace"),
    ("rtx5060", 570, "gpu-6g", "cu128", "blackwell_older_driver", "ok", "keep"),
    ("rtx5060", 580, "gpu-6g", "cu13", "newest", "ok", "keep"),
    ("two", 535, "gpu-12g", "cu126", "older_driver", "ok", "keep"),
    ("two", 580, "gpu-12g", "cu13", "newest", "ok", "keep"),
    ("igpu_and_rtx3060", 580, "gpu-12g", "cu13", "newest", "ok", "keep"),
    ("gt710", 470, "cpu", "cpu", "card_too_old", "warn", "none"),
    ("none", None, "cpu", "cpu", "no_card", "ok", "none"),
    ("amd", None, "cpu", "cpu", "other_card", "ok", "none"),
    ("gtx970", None, "cpu", "cpu", "no_driver", "warn", "install"),
    ("rtx3060", None, "cpu", "cpu", "no_driver", "warn", "install"),
    ("rtx5060", None, "cpu", "cpu", "no_driver", "warn", "install"),
    ("two", None, "cpu", "cpu", "no_driver", "warn", "install"),
]


@pytest.mark.parametrize(("card", "driver", "profile", "family", "reason", "verdict", "action"), MATRIX)
def test_each_machine_gets_its_class_its_torch_and_its_words(
    tmp_path: Path,
    card: str,
    driver: int | None,
    profile: str,
    family: str,
    reason: str,
    verdict: str,
    action: str,
) -> None:
    seen = look(Machine(tmp_path, card, driver))
    assert (seen.fit.suited, seen.fit.torch.family, seen.fit.torch.reason) == (profile, family, reason)
    assert (seen.card.verdict, seen.advice.action) == (verdict, action)
    assert seen.card.verdict == "ok" or seen.card.cure
    told(seen)


@pytest.mark.parametrize("system", ["debian12", "debian13", "ubuntu2204", "ubuntu2404"])
def test_the_system_changes_the_packages_that_are_named_and_not_the_choice(
    tmp_path: Path, system: str
) -> None:
    seen = look(Machine(tmp_path, "rtx3060", 550, os=system, headers=False))
    assert (seen.fit.suited, seen.fit.torch.family) == ("gpu-12g", "cu126")
    assert seen.facts.os_id == ("ubuntu" if system.startswith("ubuntu") else "debian")
    headers = checkup_card.check_headers(seen.facts)
    assert headers is not None
    assert headers.verdict == "warn"
    package = "linux-headers-generic" if seen.facts.os_id == "ubuntu" else "linux-headers-amd64"
    assert f"apt install {package}" in words(headers, "zh")


@pytest.mark.parametrize(
    ("card", "least", "most", "open_module"),
    [
        ("gtx970", 525, 580, False), ("gtx1060", 525, 580, False), ("gtx1650", 525, None, None),
        ("rtx3060", 525, None, None), ("rtx5060", 570, None, True), ("two", 525, 580, False),
    ],
)  # fmt: skip
def test_h08_the_generation_decides_branch_and_kind_of_module(
    tmp_path: Path, card: str, least: int, most: int | None, open_module: bool | None
) -> None:
    """From PCI numbers alone: there is no driver yet. Old cards want at most 580, proprietary."""
    advice = look(Machine(tmp_path, card)).advice
    assert (advice.action, advice.least, advice.most, advice.open_module) == (
        "install",
        least,
        most,
        open_module,
    )


def test_h08_an_old_card_behind_the_open_module_is_seen(tmp_path: Path) -> None:
    """The open module loads, and no card answers: the torch would be right, the module is not."""
    seen = look(Machine(tmp_path, "gtx970", 580, open_module=True))
    assert (seen.advice.action, seen.advice.reason, seen.card.text) == (
        "replace",
        "open_module",
        "card_open_module",
    )
    assert "580" in words(seen.card, "en")
    told(seen)


def test_nouveau_is_named_with_its_cure(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060", nouveau=True))
    assert (seen.advice.reason, seen.card.text, seen.card.verdict) == ("nouveau", "card_nouveau", "warn")
    assert "update-initramfs -u" in words(seen.card, "en")
    assert seen.facts.nvidia[0].driver == "nouveau"
    told(seen)


def test_after_an_update_of_the_libraries_a_restart_is_all_that_is_needed(tmp_path: Path) -> None:
    """And torch is chosen for what runs after it."""
    seen = look(Machine(tmp_path, "rtx3060", 535, library=580))
    assert seen.facts.driver.error == "LibRmVersionMismatch"
    assert (seen.advice.action, seen.card.verdict, seen.card.text) == ("restart", "fail", "card_mismatch")
    assert (seen.fit.torch.family, seen.fit.reason) == ("cu13", "memory_unknown")
    assert "535.247.01" in words(seen.card, "en")
    told(seen)


def test_in_a_container_the_libraries_must_follow_the_hosts_module(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060", 535, library=580, virt="lxc"))
    assert (seen.advice.action, seen.card.verdict) == ("host", "fail")
    assert seen.fit.torch.family == "cu126", "the host's 535 counts"
    assert "535.247.01" in words(seen.card, "zh")
    assert seen.facts.secure_boot is None, "the host's business"
    assert seen.facts.headers is None
    told(seen)


def test_a_container_with_the_card_passed_in_is_like_a_machine(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060", 580, virt="docker"))
    assert (seen.fit.suited, seen.advice.action, seen.card.verdict) == ("gpu-12g", "keep", "ok")


def test_a_container_without_the_card_passed_in_points_to_the_host(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060", virt="lxc"))
    assert (seen.advice.action, seen.card.text) == ("host", "card_container")
    assert "/dev/nvidia0" in words(seen.card, "en")
    told(seen)


@pytest.mark.parametrize(
    ("state", "expected", "verdict"),
    [("on", "on", "warn"), ("off", "off", "ok"), ("off_in_shim", "off", "ok"), ("absent", "absent", "ok"),
     ("no_support", "absent", "ok")],
)  # fmt: skip
def test_secure_boot_matters_before_there_is_a_driver(
    tmp_path: Path, state: str, expected: str, verdict: str
) -> None:
    facts = look(Machine(tmp_path, "rtx3060", secure_boot=state)).facts
    check = checkup_card.check_secure_boot(facts)
    assert check is not None
    assert (facts.secure_boot, check.verdict, check.text) == (expected, verdict, f"secure_boot_{expected}")
    assert ("MOK" in words(check, "en")) == (state == "on")
    assert ("MOK" in words(check, "zh")) == (state == "on")


def test_secure_boot_with_a_driver_that_loaded_is_fine(tmp_path: Path) -> None:
    check = checkup_card.check_secure_boot(look(Machine(tmp_path, "rtx3060", 580, secure_boot="on")).facts)
    assert check is not None
    assert check.verdict == "ok"


def test_a_program_in_a_container_that_holds_the_card_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rtx3060", 580, apps="apps_jellyfin")
    machine.put("/proc/1999/comm", "ollama\n")
    machine.put("/proc/1999/cgroup", f"0::/system.slice/docker-{'0f' * 32}.scope\n")
    seen = look(machine)
    assert seen.fit.gpu is not None
    assert seen.fit.gpu.holders == (
        Holder(4711, "ffmpeg", 412 * MIB),
        Holder(1999, "ollama", 7986 * MIB, "docker"),
    )
    check = checkup_card.check_holders(seen.fit.gpu, (), "nvidia-smi")
    assert check is not None
    assert check.verdict == "warn"
    assert "ollama (docker) 7.8 GB, ffmpeg 412 MB" in words(check, "en")
    ours = checkup_card.check_holders(seen.fit.gpu, {1999}, "nvidia-smi")
    assert ours is not None
    assert ours.verdict == "ok"


def test_of_two_cards_the_other_one_is_told_about(tmp_path: Path) -> None:
    """The freer RTX 3060 decides; the GTX 1080 has no kernels in CUDA 13, or no driver from 590 on."""
    both = look(Machine(tmp_path / "a", "two", 580))
    assert both.fit.gpu is not None
    assert both.fit.gpu.name == "NVIDIA GeForce RTX 3060"
    beside = checkup_card.check_other_cards(both.facts, both.fit)
    assert [(check.verdict, check.text) for check in beside] == [("ok", "card_beside")]
    assert "GTX 1080" in words(beside[0], "zh")
    named = look(Machine(tmp_path / "b", "two", 580), gpu=both.facts.gpus[0].uuid)
    assert (named.fit.suited, named.fit.torch.family) == ("gpu-6g", "cu126")
    missing = look(Machine(tmp_path / "c", "two", 580), gpu="GPU-nothing")
    assert (missing.fit.suited, missing.fit.reason) == ("cpu", "card_missing")
    assert (missing.card.verdict, missing.card.cure) == ("fail", "gpu.card_missing")
    told(missing)
    told(named)


def test_of_two_cards_with_one_name_the_chosen_one_is_checked() -> None:
    """They differ in what they can compute; the name would lead to the first."""
    gpus = tuple(Gpu(f"GPU-{n}", "Twin", 8 * GIB, 7 * GIB, (major, 0)) for n, major in enumerate((6, 8)))
    facts = Facts(gpus=gpus, driver=Driver("580.65.06", "580.65.06", (13, 0)))
    found = fit(facts, gpu="GPU-1")
    assert found.gpu == gpus[1]
    assert found.card is not None
    assert found.card.capability == (8, 0)
    assert checkup_card.check_torch(TorchBuild("2.14.1", (13, 0)), facts, found).verdict == "ok"


def test_a_card_that_the_driver_passes_over_is_told_about(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "two", 580, silent="GTX 1080"))
    checks = checkup_card.check_other_cards(seen.facts, seen.fit)
    assert [(check.verdict, check.text) for check in checks] == [("warn", "card_silent")]
    assert "GeForce GTX 1080" in words(checks[0], "en")


def test_an_intel_card_beside_is_seen_and_not_used(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "igpu_and_rtx3060", 580))
    checks = checkup_card.check_other_cards(seen.facts, seen.fit)
    assert [(check.verdict, check.text) for check in checks] == [("ok", "card_other")]
    assert "UHD Graphics 630" in words(checks[0], "en")


def test_an_amd_card_is_named_and_nothing_needs_mending(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "amd"))
    assert seen.card.text == "card_other"
    assert "AMD Radeon RX 6600" in words(seen.card, "en")
    assert "NVIDIA" in words(seen.card, "zh")


def test_without_lspci_the_bus_itself_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rtx3060", lspci=False)
    for slot, kind, vendor, device in (
        ("0000:00:00.0", "0x060000", "0x8086", "0x3e30"),
        ("0000:01:00.0", "0x030000", "0x10de", "0x2504"),
        ("0000:01:00.1", "0x040300", "0x10de", "0x228e"),
        ("0000:03:00.0", "0x030000", "0x1002", "0x73ff"),
    ):
        for name, value in (("class", kind), ("vendor", vendor), ("device", device)):
            machine.put(f"/sys/bus/pci/devices/{slot}/{name}", value + "\n")
    seen = look(machine)
    assert [(card.slot, card.generation) for card in seen.facts.pci or ()] == [
        ("0000:01:00.0", "ampere"),
        ("0000:03:00.0", None),
    ]
    assert seen.facts.sources["pci"] == "/sys/bus/pci/devices"
    assert seen.advice.action == "install"


@pytest.mark.parametrize(
    ("build", "verdict", "text"),
    [
        (None, "ok", "torch_absent"),
        (TorchBuild("2.14.1+cu130", (13, 0)), "ok", "version"),
        (TorchBuild("2.14.1+cpu", None), "warn", "torch_for_cpu"),
        (TorchBuild("2.9.0+cu118", (11, 8)), "ok", "version"),
    ],
)
def test_the_installed_torch_is_held_against_the_card(
    tmp_path: Path, build: TorchBuild | None, verdict: str, text: str
) -> None:
    check = torch_check(look(Machine(tmp_path, "rtx3060", 580)), build)
    assert (check.verdict, check.text) == (verdict, text)
    for language in ("en", "zh"):
        words(check, language)


def test_a_torch_that_does_not_fit_comes_with_the_command_that_mends_it(tmp_path: Path) -> None:
    check = torch_check(look(Machine(tmp_path, "gtx970", 580)), TorchBuild("2.14.1+cu130", (13, 0)))
    assert (check.verdict, check.text) == ("warn", "torch_wrong")
    command = "pip install 'torch>=2.6,<2.15' --index-url https://download.pytorch.org/whl/cu126"
    assert command in words(check, "en")
    assert command in words(check, "zh")


@pytest.mark.parametrize(
    ("configured", "engine", "verdict", "text"),
    [
        ("gpu-6g", True, "ok", "fit.ability_gpu_6g"), ("gpu-12g", True, "warn", "class_large"),
        ("gpu-4g", True, "ok", "fit.ability_gpu_4g"), ("cpu", True, "warn", "class_small"),
        ("cpu", False, "ok", "fit.ability_cpu"),
    ],
)  # fmt: skip
def test_the_configured_class_goes_before_and_is_held_against_the_card(
    tmp_path: Path, configured: str, engine: bool, verdict: str, text: str
) -> None:
    seen = look(Machine(tmp_path, "rtx4060", 580), configured=configured)
    assert (seen.fit.profile, seen.fit.suited) == (configured, "gpu-6g")
    check = checkup_card.check_class(seen.fit, engine)
    assert (check.verdict, check.text) == (verdict, text)
    assert "gpu-6g" in words(check, "en") or verdict == "ok"


def test_a_card_that_is_told_not_to_be_used_is_not(tmp_path: Path) -> None:
    seen = look(Machine(tmp_path, "rtx3060", 580), gpu="none")
    assert (seen.fit.suited, seen.fit.reason, seen.fit.torch.family) == ("cpu", "told_none", "cpu")
    assert (seen.card.verdict, seen.card.text, seen.card.cure) == ("ok", "card_unused", "")
    told(seen)


@pytest.mark.parametrize(
    ("reasons", "told_word", "text"),
    [(0x1, None, "health_ok"), (0x40, None, "state.gpu.throttled_heat"),
     (0x80, "ok", "state.gpu.throttled_power"),
     (0x0, "starved", "state.gpu.starved"), (0x0, "gpu_lost", "state.gpu.gpu_lost"), (0x20, "asleep",
     "state.gpu.throttled_heat")],
)  # fmt: skip
def test_a_card_that_works_badly_is_said_with_its_cure(
    tmp_path: Path, reasons: int, told_word: str | None, text: str
) -> None:
    gpu = look(Machine(tmp_path, "rtx3060", 580)).fit.gpu
    assert gpu is not None
    check = checkup_card.check_health(replace(gpu, throttle_reasons=reasons), told_word, "NVML")
    assert check is not None
    assert check.text == text
    assert (check.verdict == "warn") == bool(check.cure)
    for language in ("en", "zh"):
        words(check, language)


@pytest.mark.parametrize(
    ("gib", "name"),
    [
        (None, "cpu"), (2, "cpu"), (3.9, "gpu-4g"), (4, "gpu-4g"), (5, "gpu-4g"), (5.8, "gpu-6g"),
        (8, "gpu-6g"), (11, "gpu-6g"), (11.9, "gpu-12g"), (24, "gpu-12g"),
    ],
)  # fmt: skip
def test_the_memory_of_the_card_chooses_the_class(gib: float | None, name: str) -> None:
    assert suited_profile(None if gib is None else round(gib * GIB)) == name


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_class_can_do_is_said_in_plain_words(profile: str) -> None:
    for language in ("en", "zh"):
        assert f"fit.ability_{profile.replace('-', '_')}" in catalogue(language)  # type: ignore[arg-type]
