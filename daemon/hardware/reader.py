"""Facts of a host, each with where it came from. Works without root; what cannot be read stays unknown."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from daemon.hardware import nvidia, nvml, pci, system
from daemon.hardware.facts import NVIDIA, Driver, Facts, Gpu, Holder, PciCard
from daemon.hardware.host import Host
from daemon.ram_reader import parse_meminfo
from daemon.sockets import find_holder
from pipeline.store.place import find_mount

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")
EFI_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SMI_S, BUS_S = 10.0, 3.0

Ask = Callable[[Host], tuple[tuple[Gpu, ...], Driver]]


class _Notes:
    """Values on the way to Facts, and their sources."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def take(self, name: str, value: Any, source: str) -> None:
        """A value that is known; what is None is left as it was."""
        if value is not None:
            self.values[name], self.sources[name] = value, source


def read_facts(
    host: Host,
    *,
    ask: Ask = nvml.ask,
    state: str = "/var/lib/cosyd",
    port: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Facts:
    """Everything. `ask` is how the cards are read (NVML); where it finds no library, nvidia-smi is asked.
    `state` is the folder whose disk counts, `port` the page's."""
    notes = _Notes()
    _system(host, notes)
    _boot(host, notes)
    _memory(host, notes)
    found = host.disk(state)
    if found is not None:
        notes.take("disk_free_bytes", found[0], f"statvfs {state}")
        notes.take("disk_total_bytes", found[1], f"statvfs {state}")
    mount = find_mount(host.text("/proc/self/mountinfo") or "", state)
    notes.take("disk_kind", mount and mount.kind, "mountinfo")
    notes.take("clock_s", clock(), "clock")
    ran = host.run(["timedatectl", "show", "--property=NTPSynchronized", "--value"], BUS_S)
    if ran is not None and ran.status == 0:
        notes.take("clock_synced", system.parse_yes(ran.out), "timedatectl")
    if port is not None:
        _port(host, notes, port)
    _cards(host, notes, ask)
    return by_generation(Facts(**notes.values, sources=MappingProxyType(notes.sources)))


def _system(host: Host, notes: _Notes) -> None:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        if (text := host.text(path)) is not None:
            release = system.parse_os_release(text)
            for field, key in (("os_id", "ID"), ("os_version", "VERSION_ID"), ("os_name", "PRETTY_NAME")):
                notes.take(field, release.get(key), path)
            break
    kernel = (host.text("/proc/sys/kernel/osrelease") or "").strip() or None
    notes.take("kernel", kernel, "/proc/sys/kernel/osrelease")
    notes.take("machine", host.machine, "uname -m")
    virtual, source = _virtualization(host)
    notes.take("virtualization", virtual, source)
    if virtual is not None:
        notes.take("container", virtual in system.CONTAINERS, source)
    wsl = virtual == "wsl" or "microsoft" in (kernel or "").lower()
    notes.take("wsl", wsl, "/proc/sys/kernel/osrelease")
    name, count, flags = system.parse_cpuinfo(host.text("/proc/cpuinfo") or "")
    notes.take("cpu_name", name, "/proc/cpuinfo")
    notes.take("cpu_count", count, "/proc/cpuinfo")
    notes.take("cpu_flags", flags, "/proc/cpuinfo")


def _virtualization(host: Host) -> tuple[str | None, str]:
    ran = host.run(["systemd-detect-virt"])
    if ran is not None and ran.status is not None and re.fullmatch(r"[a-z0-9-]+", word := ran.out.strip()):
        return word, "systemd-detect-virt"
    for path, kind in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if host.exists(path):
            return kind, path
    if told := (host.text("/run/systemd/container") or "").strip():
        return told, "/run/systemd/container"
    return None, ""


def _boot(host: Host, notes: _Notes) -> None:
    """Modules, headers and secure boot are the host's: in a container they are unknown."""
    if notes.values.get("container"):
        return
    if (text := host.text("/proc/modules")) is not None:
        notes.take("nouveau", "nouveau" in system.parse_modules(text), "/proc/modules")
    if kernel := notes.values.get("kernel"):
        folder = f"/lib/modules/{kernel}/build"
        if host.names(f"/lib/modules/{kernel}"):
            there = bool(host.names(folder)) or (host.exists(folder) and host.target(folder) is None)
            notes.take("headers", there, folder)
    ran = host.run(["mokutil", "--sb-state"])
    if ran is not None:
        notes.take("secure_boot", system.parse_mokutil(ran.text), "mokutil --sb-state")
    if "secure_boot" not in notes.values:
        notes.take("secure_boot", system.parse_efi_variable(host.data(EFI_SECURE_BOOT)), "efivars")
    if (
        "secure_boot" not in notes.values
        and not host.exists("/sys/firmware/efi")
        and host.names("/sys/firmware")
    ):
        notes.take("secure_boot", "absent", "/sys/firmware")


def _memory(host: Host, notes: _Notes) -> None:
    memory = parse_meminfo(host.text("/proc/meminfo") or "")
    notes.take("ram_bytes", memory.get("MemTotal"), "/proc/meminfo")
    notes.take("ram_available_bytes", memory.get("MemAvailable"), "/proc/meminfo")
    if (areas := host.text("/proc/swaps")) is not None:
        notes.take("swaps", system.parse_swaps(areas), "/proc/swaps")
    limits = [(limit, path) for path in _limit_files(host) if (limit := _number(host.text(path))) is not None]
    limit, path = min(limits, default=(None, ""))
    if limit is not None and limit < memory.get("MemTotal", limit):
        notes.take("cgroup_limit_bytes", limit, path)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None


def _limit_files(host: Host) -> list[str]:
    """Where a limit of our cgroup, or of one above it, would stand: version 2, then version 1."""
    found = []
    for line in (host.text("/proc/self/cgroup") or "0::/").splitlines():
        _, controllers, path = ["", *line.split(":", 2)[1:], "", ""][:3]
        if controllers == "":
            base, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        found += ["/".join([base, *parts[:depth], name]) for depth in range(len(parts), -1, -1)]
    return found


def _port(host: Host, notes: _Notes, port: int) -> None:
    tables = [text for name in ("tcp", "tcp6") if (text := host.text(f"/proc/net/{name}")) is not None]
    notes.take("port", port, "configuration")
    if tables:
        taken = any(port in system.parse_listening(table) for table in tables)
        notes.take("port_free", not taken, "/proc/net/tcp")
        held_by = find_holder(port, host.root / "proc") if taken else None
        notes.take("port_holder", held_by and f"{held_by[0]} ({held_by[1]})", "/proc/PID/fd")


def _cards(host: Host, notes: _Notes, ask: Ask) -> None:
    notes.take("pci", *_pci(host))
    driver = nvidia.module_version(host.text("/proc/driver/nvidia/version"))
    if driver.module:
        notes.sources["driver.module"] = "/proc/driver/nvidia/version"
    on_disk = _library(host)
    gpus, told = ask(host)
    source = "NVML"
    if not gpus and told.error in ("LibraryNotFound", None):
        gpus, said = _smi(host)
        if said is not None:
            told, source = said, "nvidia-smi"
    if told.library and not notes.values.get("wsl"):
        on_disk = on_disk or told.library
    driver = replace(driver, library=on_disk or told.library, cuda=told.cuda, error=told.error)
    if driver.library:
        notes.sources["driver.library"] = LIBRARY if on_disk else source
    notes.take("driver", driver, source)
    if gpus:
        notes.take(
            "gpus", tuple(_named(host, gpu, bool(notes.values.get("container"))) for gpu in gpus), source
        )


def _pci(host: Host) -> tuple[tuple[PciCard, ...] | None, str]:
    ran = host.run(["lspci", "-nn", "-vmm", "-k"])
    if ran is not None and ran.status == 0 and ran.out.strip():
        return pci.parse_lspci(ran.out), "lspci -nn -vmm -k"
    folder = "/sys/bus/pci/devices"
    slots, cards = host.names(folder), []
    for slot in slots:
        files = {name: host.text(f"{folder}/{slot}/{name}") for name in ("class", "vendor", "device")}
        card = pci.from_sysfs(slot, files, host.target(f"{folder}/{slot}/driver"))
        if card is not None:
            cards.append(card)
    return (tuple(cards) if slots else None), folder


def _library(host: Host) -> str | None:
    """The version of the libraries on disk, which an update replaces under a module that runs."""
    for folder in LIBRARY_FOLDERS:
        name = host.target(f"/{folder}/{LIBRARY}")
        found = re.fullmatch(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)", name or "")
        if found:
            return found[1]
    return None


def _smi(host: Host) -> tuple[tuple[Gpu, ...], Driver | None]:
    """Cards by nvidia-smi; None for the driver where there is no such program."""
    ran = host.run(nvidia.query(nvidia.FIELDS), SMI_S)
    if ran is None:
        return (), None
    if ran.status is None:
        return (), Driver(error="timeout")
    gpus, version = nvidia.parse_gpus(ran.out)
    if not gpus:
        word, version = nvidia.parse_failure(ran.text)
        return (), Driver(library=version, error=word or "died")

    def column(field: str) -> dict[str, str]:
        ran = host.run(nvidia.query(("uuid", field)), SMI_S)
        return nvidia.parse_column(ran.out) if ran is not None and ran.status == 0 else {}

    capabilities, reasons = (column(field) for field in nvidia.NEWER_FIELDS)
    ran = host.run(nvidia.query_apps(), SMI_S)
    apps = nvidia.parse_apps(ran.out) if ran is not None and ran.status == 0 else None
    header = host.run(["nvidia-smi"], SMI_S)
    cuda = nvidia.parse_header(header.out) if header is not None else None
    full = tuple(
        replace(
            gpu,
            capability=nvidia.parse_capability(capabilities.get(gpu.uuid)),
            throttle_reasons=nvidia.parse_hex(reasons.get(gpu.uuid)),
            holders=None if apps is None else apps.get(gpu.uuid, ()),
        )
        for gpu in gpus
    )
    return full, Driver(library=version, cuda=cuda)


def _named(host: Host, gpu: Gpu, container: bool) -> Gpu:
    """With the names of who holds its memory; inside a container the numbers are the host's, and no names."""
    if gpu.holders and not container:
        gpu = replace(gpu, holders=tuple(_who(host, holder) for holder in gpu.holders))
    return gpu


def _who(host: Host, holder: Holder) -> Holder:
    name = (host.text(f"/proc/{holder.pid}/comm") or "").strip() or holder.name
    inside = system.container_of(host.text(f"/proc/{holder.pid}/cgroup") or "")
    return replace(holder, name=name, container=inside)


def by_generation(facts: Facts) -> Facts:
    """The same, where a card that does not tell its capability (drivers before 510) has its generation's."""
    known = {card.slot: card.generation for card in facts.pci or () if card.vendor == NVIDIA}
    gpus = tuple(
        replace(gpu, capability=pci.GENERATIONS[word])
        if gpu.capability is None and (word := known.get(gpu.slot)) is not None
        else gpu
        for gpu in facts.gpus
    )
    return replace(facts, gpus=gpus)
