"""All cards as NVML sees them, asked by a child with a deadline: `python -m daemon.hardware.nvml` prints one
JSON line.

NVML can block for good when a card is lost, has crashed its caller, and is memory that nobody wants to keep;
the supervisor's reader of one card (`daemon.gpu_reader`) keeps its child, this one ends. `parse` is pure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from daemon.gpu_cards import Card
from daemon.gpu_helper import describe, list_cards, optional
from daemon.hardware.facts import Driver, Gpu, Holder
from daemon.hardware.host import Host
from daemon.hardware.nvidia import short_slot

PROBE_S = 10.0


def ask(host: Host) -> tuple[tuple[Gpu, ...], Driver]:
    """Cards and driver (`library`, `cuda`, `error`). A child that hangs or dies is told as `error`."""
    ran = host.run([sys.executable, "-m", "daemon.hardware.nvml"], PROBE_S)
    if ran is None or ran.status is None:
        return (), Driver(error="timeout" if ran is not None else "died")
    try:
        return parse(json.loads(ran.out))
    except (ValueError, KeyError, TypeError):
        return (), Driver(error="died")


def parse(told: Mapping[str, Any]) -> tuple[tuple[Gpu, ...], Driver]:
    """The child's answer. Raises KeyError, ValueError or TypeError where it has another shape."""
    gpus = []
    for card in told["cards"]:
        by_pid = card["by_pid"]
        holders = None if by_pid is None else tuple(Holder(int(p), "", int(size)) for p, size in by_pid)
        gpus.append(
            Gpu(
                str(card["uuid"]), str(card["name"]), int(card["total_bytes"]), int(card["free_bytes"]),
                _pair(card["capability"]), short_slot(card["slot"] or ""), holders, card["utilisation_ratio"],
                card["temperature_c"], card["throttle_reasons"], card["parent"],
            )
        )  # fmt: skip
    return tuple(gpus), Driver(library=told["library"], cuda=_pair(told["cuda"]), error=told["error"])


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (int(value[0]), int(value[1]))


def _told(nvml: Any, card: Card, handle: Any) -> dict[str, Any]:
    bus = optional(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    slot = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    more = {"capability": card.capability, "parent": card.parent, "slot": slot}
    return {**describe(nvml, card, handle), **more}


def _look() -> dict[str, Any]:
    found: dict[str, Any] = {"library": None, "cuda": None, "cards": [], "error": None}
    try:
        import pynvml as nvml
    except ImportError:
        return {**found, "error": "LibraryNotFound"}
    try:
        nvml.nvmlInit()
        cards, lost = list_cards(nvml)
        for card, handle in cards:
            try:
                found["cards"].append(_told(nvml, card, handle))
            except nvml.NVMLError as error:
                lost = error
    except nvml.NVMLError as error:
        return {**found, "cards": [], "error": type(error).__name__.removeprefix("NVMLError_")}
    version = optional(nvml, nvml.nvmlSystemGetDriverVersion)
    found["library"] = version.decode("ascii", "replace") if isinstance(version, bytes) else version
    number = optional(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    found["cuda"] = None if not number else (number // 1000, number % 1000 // 10)
    found["error"] = None if lost is None else type(lost).__name__.removeprefix("NVMLError_")
    return found


if __name__ == "__main__":
    print(json.dumps(_look()))
