"""Machines of files: outputs of lspci, nvidia-smi and mokutil from tests/data/hardware, put together.

The driver of a fixture behaves as the real one of its branch: it does not know cards that are too new or too
old for it, and nvidia-smi of branch 470 does not know the field compute_cap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.cli import checkup_card
from daemon.cli.checkup import Check
from daemon.hardware.driver import DriverAdvice, advise
from daemon.hardware.facts import Driver, Facts, Gpu
from daemon.hardware.fit import Fit, fit
from daemon.hardware.host import Host, Ran, RealHost
from daemon.hardware.reader import EFI_SECURE_BOOT, LIBRARY, read_facts
from pipeline.planning.torch_build import TorchBuild

DATA = Path(__file__).resolve().parents[1] / "data" / "hardware"
CUDA = {470: "11.4", 535: "12.2", 550: "12.4", 570: "12.8", 580: "13.0", 595: "13.2"}
FULL = {470: "470.256.02", 535: "535.247.01", 550: "550.163.01", 570: "570.172.08", 580: "580.95.05",
        595: "595.71.05"}  # fmt: skip
KNOWN_FROM = {"rtx4060": 520, "rtx5060": 570}
OLD = {"gtx970": 580, "gtx1060": 580, "gt710": 470}
NOW = 1_796_000_000.0
KERNEL = "6.1.0-40-amd64"


def data(name: str) -> str:
    return (DATA / name).read_text("utf-8")


@dataclass
class Machine(RealHost):
    """A folder that looks like a machine. `driver` is the branch of the loaded module, `library` that of the
    libraries on disk (the same, unless an update waits)."""

    root: Path
    card: str = "none"
    driver: int | None = None
    library: int | None = None
    os: str = "debian12"
    virt: str = "none"
    secure_boot: str | None = "off"
    nouveau: bool = False
    headers: bool = True
    open_module: bool = False
    apps: str = ""
    arch: str = "x86_64"
    lspci: bool = True
    silent: str = ""
    """A card whose name has this in it is passed over by the driver."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.library = self.library or self.driver
        self.put("/etc/os-release", data(f"os/{self.os}"))
        self.put("/proc/sys/kernel/osrelease", KERNEL + "\n")
        for name in ("meminfo", "swaps", "cpuinfo"):
            self.put(f"/proc/{name}", data(f"proc/{name}.txt"))
        loaded = "modules-nouveau" if self.nouveau else "modules-nvidia" if self.driver else ""
        self.put("/proc/modules", data(f"proc/{loaded}.txt") if loaded else "e1000e 323584 0 - Live 0x0\n")
        (self.root / f"lib/modules/{KERNEL}/kernel").mkdir(parents=True)
        if self.headers:
            (self.root / f"lib/modules/{KERNEL}/build/include").mkdir(parents=True)
        if self.driver:
            kind = "open" if self.open_module else "proprietary"
            text = data(f"proc/version-{kind}.txt").replace("{driver}", FULL[self.driver])
            self.put("/proc/driver/nvidia/version", text)
        if self.library:
            folder = self.root / "usr/lib/x86_64-linux-gnu"
            folder.mkdir(parents=True)
            (folder / f"libnvidia-ml.so.{FULL[self.library]}").touch()
            (folder / LIBRARY).symlink_to(f"libnvidia-ml.so.{FULL[self.library]}")

    def put(self, path: str, content: str) -> None:
        there = self.root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(content, "utf-8")

    @property
    def machine(self) -> str:
        return self.arch

    def disk(self, path: str) -> tuple[int, int] | None:
        return 90 * 1024**3, 240 * 1024**3

    def run(self, command: Sequence[str], timeout_s: float = 10.0) -> Ran | None:
        self.calls.append(command[0])
        if command[0] == "lspci":
            return Ran(0, self._lspci()) if self.lspci else None
        if command[0] == "systemd-detect-virt":
            return Ran(1 if self.virt == "none" else 0, self.virt + "\n")
        if command[0] == "mokutil":
            return None if self.secure_boot is None else Ran(0, data(f"mokutil/{self.secure_boot}.txt"))
        if command[0] == "timedatectl":
            return Ran(0, "yes\n")
        return self._smi(command) if command[0] == "nvidia-smi" else None

    def _lspci(self) -> str:
        text = data(f"lspci/{self.card}.txt")
        if self.driver is None:
            text = text.replace("Driver:\tnvidia\n", "Driver:\tnouveau\n" if self.nouveau else "")
        return text

    def answers(self) -> bool:
        """Whether the driver knows the card."""
        known = KNOWN_FROM.get(self.card, 0) <= (self.driver or 0) <= OLD.get(self.card, 999)
        old_with_open = self.open_module and self.card in OLD
        return self.driver is not None and known and not old_with_open

    def _smi(self, command: Sequence[str]) -> Ran | None:
        if self.library is None:
            return None
        if self.driver is None:
            return Ran(9, data("smi/no_driver.txt"))
        if self.driver != self.library:
            short = ".".join(FULL[self.library].split(".")[:2])
            return Ran(18, data("smi/mismatch.txt").replace("{library}", short))
        if not self.answers() or not (DATA / f"smi/{self.card}.csv").exists():
            return Ran(6, data("smi/no_devices.txt"))
        version = FULL[self.driver]
        if len(command) == 1:
            return Ran(
                0, data("smi/header.txt").replace("{driver}", version).replace("{cuda}", CUDA[self.driver])
            )
        asked = command[1]
        if asked.startswith("--query-compute-apps"):
            return Ran(0, data(f"smi/{self.apps}.csv").replace("{uuid}", self.uuid()) if self.apps else "")
        if asked == "--query-gpu=uuid,compute_cap":
            if self.driver < 510:
                return Ran(2, 'Field "compute_cap" is not a valid field to query.\n\n')
            return Ran(0, data(f"smi/{self.card}.compute_cap.csv"))
        if asked == "--query-gpu=uuid,clocks_throttle_reasons.active":
            return Ran(0, f"{self.uuid()}, 0x0000000000000001\n")
        rows = data(f"smi/{self.card}.csv").replace("{driver}", version).splitlines(keepends=True)
        return Ran(0, "".join(row for row in rows if not self.silent or self.silent not in row))

    def uuid(self) -> str:
        """Of the first card."""
        found = re.match(r"GPU-[0-9a-f-]+", data(f"smi/{self.card}.csv"))
        assert found
        return found[0]


def no_nvml(_: Host) -> tuple[tuple[Gpu, ...], Driver]:
    """NVML's binding is not there, as before there is a venv."""
    return (), Driver(error="LibraryNotFound")


@dataclass(frozen=True)
class Look:
    """A machine, read and judged."""

    facts: Facts
    fit: Fit
    advice: DriverAdvice
    card: Check


def look(machine: Machine, *, gpu: str = "auto", configured: str | None = None) -> Look:
    facts = read_facts(machine, ask=no_nvml, clock=lambda: NOW)
    found = fit(facts, gpu=gpu, configured=configured, origin="cosyd.toml" if configured else None)
    advice = advise(facts, found.torch)
    return Look(facts, found, advice, checkup_card.check_card(facts, found, advice))


def torch_check(seen: Look, build: TorchBuild | None) -> Check:
    return checkup_card.check_torch(build, seen.facts, seen.fit)


__all__ = [
    "DATA",
    "EFI_SECURE_BOOT",
    "FULL",
    "KERNEL",
    "NOW",
    "Look",
    "Machine",
    "data",
    "look",
    "no_nvml",
    "torch_check",
]
