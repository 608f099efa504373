"""What NVIDIA's driver tells, in text: nvidia-smi's tables and /proc/driver/nvidia/version. Pure."""

from __future__ import annotations

import csv
import re

from daemon.hardware.facts import Capability, Driver, Gpu, Holder

MIB = 1024**2
FIELDS = (
    "uuid", "name", "pci.bus_id", "memory.total", "memory.free", "utilization.gpu", "temperature.gpu",
    "driver_version",
)  # fmt: skip
"""Known to every driver of the last ten years."""
NEWER_FIELDS = ("compute_cap", "clocks_throttle_reasons.active")
"""Not known to old or to very new drivers; asked for in calls of their own, so that no more is lost."""
APPS = ("gpu_uuid", "pid", "process_name", "used_memory")


def query(fields: tuple[str, ...]) -> list[str]:
    """The command that `parse_gpus` and `parse_column` read."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def query_apps() -> list[str]:
    """The command that `parse_apps` reads."""
    return ["nvidia-smi", f"--query-compute-apps={','.join(APPS)}", "--format=csv,noheader,nounits"]


def _rows(text: str) -> list[list[str]]:
    found = []
    for line in text.splitlines():
        try:
            row = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error:
            continue  # no line of a table
        if row:
            found.append([cell.strip() for cell in row])
    return found


def _float(text: str) -> float | None:
    """A number; None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` and the like."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str | None]:
    """Cards and the library's version from `query(FIELDS)`; lines of another shape are left out."""
    gpus, version = [], None
    for row in _rows(text):
        if len(row) != len(FIELDS) or not row[0].startswith(("GPU-", "MIG-")):
            continue
        uuid, name, slot, total, free, busy, heat, version = row
        size, left, load = _float(total), _float(free), _float(busy)
        gpus.append(
            Gpu(
                uuid, name,
                total_bytes=None if size is None else int(size * MIB),
                free_bytes=None if left is None else int(left * MIB),
                slot=short_slot(slot),
                utilisation_ratio=None if load is None else load / 100,
                temperature_c=_float(heat),
            )
        )  # fmt: skip
    return tuple(gpus), version


def short_slot(text: str) -> str:
    """`0000:01:00.0` of nvidia-smi's `00000000:01:00.0`."""
    found = re.fullmatch(r"(?:[0-9A-Fa-f]{4})?([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)", text)
    return found[1].lower() if found else ""


def parse_column(text: str) -> dict[str, str]:
    """UUID -> value, from `query(("uuid", FIELD))`."""
    return {row[0]: row[1] for row in _rows(text) if len(row) == 2 and row[0].startswith(("GPU-", "MIG-"))}


def parse_capability(text: str | None) -> Capability | None:
    """(8, 6) of `8.6`."""
    found = re.fullmatch(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def parse_hex(text: str | None) -> int | None:
    """A bit mask such as `0x0000000000000004`."""
    return int(text, 16) if text and re.fullmatch(r"0x[0-9a-fA-F]+", text) else None


def parse_apps(text: str) -> dict[str, tuple[Holder, ...]]:
    """UUID -> programs with memory on it, from `query_apps()`; its size is unknown under WSL."""
    found: dict[str, tuple[Holder, ...]] = {}
    for row in _rows(text):
        if len(row) == len(APPS) and row[1].isdecimal():
            used = _float(row[3])
            name = row[2].rpartition("/")[2].split(" ")[0]
            holder = Holder(int(row[1]), name, None if used is None else int(used * MIB))
            found[row[0]] = (*found.get(row[0], ()), holder)
    return found


def parse_header(text: str) -> tuple[int, int] | None:
    """The CUDA version in the header of plain `nvidia-smi`."""
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def parse_failure(text: str) -> tuple[str | None, str | None]:
    """NVML's word for what nvidia-smi complains about, and the library's version where it says so."""
    words = (
        ("Driver/library version mismatch", "LibRmVersionMismatch"),
        ("couldn't communicate with the NVIDIA driver", "DriverNotLoaded"),
        ("No devices were found", "NotFound"),
        ("GPU is lost", "GpuIsLost"),
        ("Unable to determine the device handle", "GpuIsLost"),
        ("Insufficient Permissions", "NoPermission"),
        ("couldn't find libnvidia-ml.so", "LibraryNotFound"),
    )
    version = re.search(r"NVML library version:\s*(\d+(?:\.\d+)*)", text)
    return next((word for said, word in words if said in text), None), version[1] if version else None


def module_version(text: str | None) -> Driver:
    """Version and kind of the loaded module, from /proc/driver/nvidia/version."""
    first = (text or "").splitlines()[0] if (text or "").strip() else ""
    found = re.search(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", first)
    if found is None:
        return Driver()
    return Driver(module=found[1], open_module="Open Kernel Module" in first)
