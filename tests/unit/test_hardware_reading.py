"""Facts are read without root, never for ever, and what cannot be read stays unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.cli import checkup_machine, detecting
from daemon.cli.checkup import Check
from daemon.cli.main import main
from daemon.hardware import nvidia, nvml, pci, system
from daemon.hardware.facts import Driver, Facts, Gpu, Holder, PciCard, Swap
from daemon.hardware.host import Ran, RealHost
from daemon.hardware.reader import EFI_SECURE_BOOT, read_facts
from pipeline.messages import catalogue, render
from pipeline.model_state import FileState
from tests.fakes.nvml import FakeCard, FakeNvml, build
from tests.unit.hardwarekit import KERNEL, NOW, Machine, data, look, no_nvml

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB, GIB = 1024, 1024**2, 1024**3


def test_a_machine_that_tells_nothing_is_unknown_and_no_error(tmp_path: Path) -> None:
    facts = read_facts(RealHost(tmp_path, {"PATH": ""}), ask=no_nvml, state=str(tmp_path), clock=lambda: NOW)
    known = {"machine", "wsl", "driver", "disk_free_bytes", "disk_total_bytes", "clock_s"}
    assert set(facts.sources) <= known
    assert (facts.os_id, facts.kernel, facts.container, facts.pci, facts.nouveau) == (None,) * 5
    assert (facts.headers, facts.secure_boot, facts.ram_bytes, facts.swaps) == (None,) * 4
    assert facts.gpus == ()


def test_every_value_says_where_it_comes_from(tmp_path: Path) -> None:
    facts = look(Machine(tmp_path, "rtx3060", 580)).facts
    for name, value in facts.to_params().items():
        assert (name in facts.sources) == (value is not None), name
    assert facts.sources["gpus"] == "nvidia-smi"
    assert facts.sources["driver.module"] == "/proc/driver/nvidia/version"
    assert facts.sources["driver.library"] == "libnvidia-ml.so.1"
    assert json.loads(json.dumps(facts.to_params()))["gpus"][0]["capability"] == [8, 6]


def test_memory_swap_and_processor_of_a_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rtx3060", 580)
    machine.put("/proc/self/cgroup", "0::/lxc/101/ns\n")
    machine.put("/sys/fs/cgroup/lxc/101/memory.max", f"{4 * GIB}\n")
    machine.put("/sys/fs/cgroup/lxc/101/ns/memory.max", "max\n")
    facts = look(machine).facts
    assert (facts.ram_bytes, facts.ram_available_bytes) == (16250876 * KIB, 11902216 * KIB)
    assert facts.cgroup_limit_bytes == 4 * GIB
    assert facts.swaps == (
        Swap("/dev/sda3", "partition", 999420 * KIB, 0),
        Swap("/swap file", "file", 2097148 * KIB, 4096 * KIB),
        Swap("/dev/zram0", "zram", 4063228 * KIB, 12 * KIB),
    )
    assert (facts.cpu_count, facts.cpu_flags) == (2, ("avx2",))
    assert facts.cpu_name == "Intel(R) Core(TM) i5-8400 CPU @ 2.80GHz"


def test_without_mokutil_the_firmwares_own_variable_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rtx3060", secure_boot=None)
    there = tmp_path / EFI_SECURE_BOOT.lstrip("/")
    there.parent.mkdir(parents=True)
    there.write_bytes(b"\x06\0\0\0\x01")
    assert look(machine).facts.secure_boot == "on"
    there.write_bytes(b"\x06\0\0\0\x00")
    assert look(machine).facts.secure_boot == "off"
    there.write_bytes(b"")
    assert look(machine).facts.secure_boot is None


def test_the_port_and_who_has_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "none")
    head = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    )
    machine.put(
        "/proc/net/tcp", head + "   0: 0100007F:1EB4 00000000:0000 0A 00000000:00000000 00:0 0 0 0 7\n"
    )
    assert read_facts(machine, ask=no_nvml, port=7860).port_free is False
    assert read_facts(machine, ask=no_nvml, port=7861).port_free is True
    assert read_facts(machine, ask=no_nvml).port_free is None


def test_headers_of_another_kernel_do_not_count(tmp_path: Path) -> None:
    """H03: Proxmox, HWE and custom kernels; a dangling link is what a removed package leaves."""
    machine = Machine(tmp_path, "rtx3060", headers=False)
    (tmp_path / "lib/modules/6.1.0-39-amd64/build").mkdir(parents=True)
    assert look(machine).facts.headers is False
    (tmp_path / f"lib/modules/{KERNEL}/build").symlink_to(f"/usr/src/linux-headers-{KERNEL}")
    assert look(machine).facts.headers is False


@pytest.mark.parametrize(
    ("device", "name", "generation"),
    [
        ("13c2", "GM204 [GeForce GTX 970]", "maxwell"), ("13c2", "", "maxwell"), ("1380", "", "maxwell"),
        ("1c03", "", "pascal"), ("1d01", "", "pascal"), ("15f7", "", "pascal"), ("1d81", "", "volta"),
        ("1f82", "", "turing"), ("2184", "", "turing"), ("1f0a", "", "turing"), ("1eb8", "", "turing"),
        ("2504", "", "ampere"), ("2584", "", "ampere"), ("20b0", "", "ampere"), ("2335", "", "hopper"),
        ("2882", "", "ada"), ("27b8", "", "ada"), ("2d05", "", "blackwell"), ("2b85", "", "blackwell"),
        ("2f04", "", "blackwell"), ("128b", "", "kepler"), ("1004", "", "kepler"), ("1200", "", "fermi"),
        ("ffff", "", None), ("0191", "G80 [GeForce 8800 GTX]", None), ("ffff", "GB206 [GeForce RTX 5060]",
        "blackwell"),
    ],
)  # fmt: skip
def test_h08_the_generation_is_known_by_name_and_by_number(
    device: str, name: str, generation: str | None
) -> None:
    assert pci.generation(device, name) == generation


def test_only_display_controllers_count() -> None:
    assert pci.parse_lspci(data("lspci/two.txt")) == (
        PciCard("0000:01:00.0", "10de", "1b80", "GP104 [GeForce GTX 1080]", "nvidia", "pascal"),
        PciCard(
            "0000:02:00.0", "10de", "2504", "GA106 [GeForce RTX 3060 Lite Hash Rate]", "nvidia", "ampere"
        ),
    )
    assert pci.parse_lspci(data("lspci/rtx5060.txt"))[0].title == "NVIDIA 10de:2d05"
    assert pci.parse_lspci("") == ()


def test_what_nvidia_smi_cannot_tell_is_unknown() -> None:
    odd = (
        'GPU-1, "NVIDIA A, B", 00000000:0A:00.0, [N/A], [Insufficient Permissions], [Not Supported], ERR!, '
        "580.1\n"
        "Unable to determine the device handle\n"
    )
    gpus, version = nvidia.parse_gpus(odd)
    assert gpus == (Gpu("GPU-1", "NVIDIA A, B", slot="0000:0a:00.0"),)
    assert version == "580.1"
    assert nvidia.parse_apps("GPU-1, 7, [Not Found], [N/A]\n") == {"GPU-1": (Holder(7, "[Not", None),)}
    assert nvidia.parse_header("") is None
    assert nvidia.parse_hex("[N/A]") is None


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (data("proc/version-proprietary.txt"), Driver("535.183.01", open_module=False)),
        (data("proc/version-open.txt"), Driver("535.183.01", open_module=True)),
        ("", Driver()), (None, Driver()), ("nonsense", Driver()),
    ],
)  # fmt: skip
def test_the_kernel_modules_version_is_read_from_both_kinds(text: str | None, driver: Driver) -> None:
    assert nvidia.module_version(text and text.replace("{driver}", "535.183.01")) == driver


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [
        (f"0::/system.slice/docker-{'ab' * 32}.scope", "docker"),
        (f"12:memory:/docker/{'ab' * 32}", "docker"),
        (f"0::/user.slice/libpod-{'ab' * 32}.scope", "podman"), ("0::/lxc.payload.101/init", "lxc"),
        ("0::/kubepods.slice/kubepods-pod1", "kubernetes"), ("0::/system.slice/ollama.service", ""), ("", ""),
    ],
)  # fmt: skip
def test_which_kind_of_container_a_program_is_in(cgroup: str, kind: str) -> None:
    assert system.container_of(cgroup) == kind


@settings(deadline=None, max_examples=80)
@given(st.text(max_size=200))
def test_no_parser_fails_on_odd_text(text: str) -> None:
    lines = text + "\n" + data("lspci/rtx3060.txt") + text
    pci.parse_lspci(lines)
    for parse in (
        nvidia.parse_gpus, nvidia.parse_column, nvidia.parse_apps, nvidia.parse_header, nvidia.parse_failure,
        nvidia.module_version, nvidia.parse_capability, nvidia.parse_hex, system.parse_os_release,
        system.parse_modules, system.parse_swaps, system.parse_cpuinfo, system.parse_mokutil,
        system.parse_yes, system.parse_listening,
    ):  # fmt: skip
        parse(text)  # type: ignore[operator]


# The shell: real processes.


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script(tmp_path, "nvidia-smi", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    host = RealHost(environ={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert host.run(["nvidia-smi"], 1.0) == Ran(None)
    child = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            stat = Path(f"/proc/{child}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        if stat.rpartition(")")[2].split()[0] == "Z":
            return  # ended; whoever adopted it has not reaped it yet
        time.sleep(0.02)
    pytest.fail("the grandchild lives on")


def test_real_commands_first_on_path_are_what_is_read(tmp_path: Path) -> None:
    """In English, whatever the person speaks, and with a card whose driver hangs."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    tools.mkdir()
    (tmp_path / "lspci.txt").write_text(data("lspci/rtx3060.txt"))
    script(tools, "lspci", f'[ "$LC_ALL" = C ] && [ "$*" = "-nn -vmm -k" ] && cat {tmp_path}/lspci.txt')
    script(tools, "mokutil", "echo 'EFI variables are not supported on this system' >&2; exit 255")
    script(tools, "systemd-detect-virt", "echo none; exit 1")
    script(tools, "nvidia-smi", "exec sleep 600")
    Machine(root, "rtx3060", 580)
    host = RealHost(root, {"PATH": f"{tools}:/usr/bin:/bin", "LANG": "zh_CN.UTF-8"})
    run = host.run
    host.run = lambda command, timeout_s=10.0: run(command, min(timeout_s, 1.0))  # type: ignore[method-assign]
    facts = read_facts(host, ask=no_nvml)
    assert facts.nvidia[0].title == "NVIDIA GeForce RTX 3060 Lite Hash Rate"
    assert (facts.secure_boot, facts.virtualization, facts.container) == ("absent", "none", False)
    assert (facts.driver.error, facts.gpus) == ("timeout", ())
    assert facts.driver.module == "580.95.05"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def test_nvml_itself_is_asked_by_a_child(library: Path, tmp_path: Path) -> None:
    fake = FakeNvml(library, tmp_path / "nvml.txt")
    fake.cards = [
        FakeCard("GPU-1", total=12 * GIB, free=11 * GIB, cc=86, name="RTX3060", reasons=0x40,
                 processes=[(os.getpid(), 300 * MIB)]),
        FakeCard("GPU-2", total=8 * GIB, free=8 * GIB, cc=61, name="GTX1080"),
    ]  # fmt: skip
    fake.write()
    gpus, driver = nvml.ask(RealHost(environ=fake.environ()))
    assert [(gpu.uuid, gpu.name, gpu.capability, gpu.total_bytes) for gpu in gpus] == [
        ("GPU-1", "RTX3060", (8, 6), 12 * GIB),
        ("GPU-2", "GTX1080", (6, 1), 8 * GIB),
    ]
    assert gpus[0].holders == (Holder(os.getpid(), "", 300 * MIB),)
    assert gpus[0].throttle_reasons == 0x40
    assert (driver.library, driver.error) == (fake.driver, None)


@pytest.mark.parametrize(
    ("errors", "word"),
    [({"nvmlInit": 18}, "LibRmVersionMismatch"), ({"nvmlInit": 9}, "DriverNotLoaded")],
)
def test_nvmls_own_word_is_kept(library: Path, tmp_path: Path, errors: dict[str, int], word: str) -> None:
    fake = FakeNvml(library, tmp_path / "nvml.txt", errors=errors)
    fake.write()
    assert nvml.ask(RealHost(environ=fake.environ())) == ((), Driver(error=word))


def test_a_driver_that_hangs_or_crashes_under_nvml_is_told(library: Path, tmp_path: Path) -> None:
    fake = FakeNvml(library, tmp_path / "nvml.txt", crash="nvmlDeviceGetCount")
    fake.write()
    assert nvml.ask(RealHost(environ=fake.environ()))[1].error == "died"
    fake.crash, fake.delays_ms = "", {"nvmlInit": 60_000}
    fake.write()
    host = RealHost(environ=fake.environ())
    run = host.run
    host.run = lambda command, timeout_s=10.0: run(command, 2.0)  # type: ignore[method-assign]
    assert nvml.ask(host)[1].error == "timeout"


def test_the_installer_gets_it_all_as_json_before_there_is_a_venv(tmp_path: Path) -> None:
    """Standard library only: -S leaves out site-packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "daemon.hardware", "--state", str(tmp_path), "--profile", "gpu-6g"],
        cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told) == {"facts", "sources", "fit", "driver", "text"}
    assert (told["fit"]["profile"], told["facts"]["kernel"]) == ("gpu-6g", os.uname().release)
    assert told["fit"]["torch"]["pip"][0].startswith("torch>=")


def test_detect_tells_every_fact_and_its_source_in_both_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "m", "gtx970", 580)
    monkeypatch.setattr("daemon.cli.admin.machine", lambda _: look(machine).facts)
    from click.testing import CliRunner

    state = ["--state", str(tmp_path / "state")]
    runner = CliRunner()
    shown = runner.invoke(main, ["admin", "profile", "detect", *state], env={"COSYD_LANG": "zh"})
    assert (shown.exit_code, shown.stdout.strip()) == (0, "gpu-4g"), shown.output
    assert "CUDA 12.6" in shown.stderr
    assert "NVIDIA GeForce GTX 970 有 4 GB 显存。" in shown.stderr
    every = runner.invoke(main, ["admin", "profile", "detect", "--facts", *state], env={"COSYD_LANG": "en"})
    assert all(name in every.stdout for name in ("secure_boot", "mokutil", "GTX 970", "nvidia-smi"))
    told = json.loads(runner.invoke(main, ["admin", "profile", "detect", "--json", *state]).stdout)
    assert (told["profile"], told["configured"], told["torch"]["family"]) == ("gpu-4g", None, "cu126")
    assert told["facts"]["secure_boot"] == {"value": "off", "source": "mokutil --sb-state"}
    env = {"COSYD_PROFILE": "gpu-12g", "COSYD_LANG": "en"}
    over = runner.invoke(main, ["admin", "profile", "detect", *state], env=env)
    assert over.stdout.strip() == "gpu-4g"
    assert "The configuration says gpu-12g (environment)" in over.stderr
    none = runner.invoke(main, ["admin", "profile", "detect", "--gpu", "none", *state])
    assert none.stdout.strip() == "cpu"


CLOCK = Facts(clock_s=NOW, clock_synced=True)
ALONE = replace(CLOCK, clock_synced=False)
THERE, GONE, LOST = FileState("a", "there"), FileState("b", "missing"), FileState("c", "missing")


@pytest.mark.parametrize(
    ("check", "verdict", "text"),
    [
        (checkup_machine.check_clock(CLOCK, NOW - 1e6), "ok", "clock_good"),
        (checkup_machine.check_clock(CLOCK, NOW + 1e6), "fail", "clock_wrong"),
        (checkup_machine.check_clock(CLOCK, 0.0), "fail", "clock_wrong"),
        (checkup_machine.check_clock(ALONE, NOW), "warn", "clock_unsynced"),
        (checkup_machine.check_clock(replace(ALONE, container=True), NOW), "ok", "clock_good"),
        (checkup_machine.check_clock(Facts(), NOW), "ok", "clock_unknown"),
        (checkup_machine.check_model([GONE, LOST], "/m"), "ok", "model_absent"),
        (checkup_machine.check_model([THERE, GONE], "/m"), "warn", "model_incomplete"),
        (checkup_machine.check_model([THERE], "/m"), "ok", "model_whole"),
        (checkup_machine.check_system(Facts(virtualization="none")), "ok", "system_bare"),
        (checkup_machine.check_system(Facts(virtualization="lxc")), "ok", "system_inside"),
    ],
)  # fmt: skip
def test_clock_model_and_system_get_their_verdict_and_trouble_comes_with_a_cure(
    check: Check, verdict: str, text: str
) -> None:
    assert (check.verdict, check.text) == (verdict, text)
    assert bool(check.cure) == (verdict != "ok")
    for language in ("en", "zh"):
        words = catalogue(language)  # type: ignore[arg-type]
        assert f"doctor.name_{check.name}" in words
        assert all(f"doctor.{key}" in words for key in (check.text, check.cure) if key)


def test_every_name_of_a_check_has_its_word(tmp_path: Path) -> None:
    names = "card other_card headers secure_boot torch class holders health clock model system"
    for name in names.split():
        assert f"doctor.name_{name}" in catalogue("zh")
    assert render("doctor.name_class", "zh") == "硬件档位"
    assert list(detecting.rows(look(Machine(tmp_path, "two", 580)).facts))
