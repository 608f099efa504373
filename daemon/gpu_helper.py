"""Asks NVML for one card: `python -m daemon.gpu_helper`, a process of its own.

NVML can hang in the kernel when a card drops off the bus, and has crashed its caller (nvitop 139); here it
takes nothing with it. For each line on stdin one JSON line on stdout: a reading, or `{"error": WORD}` with a
word of `gpu_states`. Ends on EOF. Run by `daemon.gpu_reader` with a deadline.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from daemon import gpu_states
from daemon.gpu_cards import Capability, Card, choose

VALUE_OF_TEMPERATURE_GPU = 0
LIBRARY = "libnvidia-ml.so.1"


def read_card(
    nvml: Any,
    wanted: str,
    visible_devices: str | None = None,
    lowest: Capability | None = None,
    highest: Capability | None = None,
) -> dict[str, Any]:
    """One reading of the card that `gpu_cards.choose` chooses.

    Decisions are made on `free`, which the old and the new call share (they disagree on what is used: the
    old one counts the driver's own part). Values that a driver does not support are None. Raises
    nvml.NVMLError when the card itself cannot be read.
    """
    found, lost = list_cards(nvml)
    card = choose([card for card, _ in found], wanted, visible_devices, lowest, highest)
    if isinstance(card, str):
        if lost is not None:
            raise lost  # the one that was meant may be the one that is lost
        return {"error": card}
    return describe(nvml, card, next(handle for other, handle in found if other == card))


def describe(nvml: Any, card: Card, handle: Any) -> dict[str, Any]:
    """What is told of one card. Raises nvml.NVMLError when it is lost."""

    def asked(call: Callable[[], Any]) -> Any:
        return optional(nvml, call)

    rates = asked(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power = asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    reasons = asked(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return {
        "free_bytes": card.free_bytes,
        "total_bytes": card.total_bytes,
        "uuid": card.uuid,
        "name": card.name,
        "by_pid": _processes(nvml, handle),
        "utilisation_ratio": None if rates is None else rates.gpu / 100,
        "temperature_c": asked(
            lambda: float(nvml.nvmlDeviceGetTemperature(handle, VALUE_OF_TEMPERATURE_GPU))
        ),
        "power_w": None if power is None else power / 1000,
        "throttle_reasons": None if reasons is None else int(reasons),
    }


def list_cards(nvml: Any) -> tuple[list[tuple[Card, Any]], Exception | None]:
    """All cards and MIG slices with their handles, and the error of one that could not be read: one lost
    card of several does not hide the others."""
    found: list[tuple[Card, Any]] = []
    lost: Exception | None = None
    count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = _card(nvml, handle)
        except nvml.NVMLError as error:
            lost = error
            continue
        found.append((card, handle))
        mode = optional(nvml, lambda handle=handle: nvml.nvmlDeviceGetMigMode(handle))  # type: ignore[misc]
        if mode and mode[0] == 1:
            found += _slices(nvml, handle, card)
    return found, lost


def _slices(nvml: Any, handle: Any, card: Card) -> Sequence[tuple[Card, Any]]:
    found: list[tuple[Card, Any]] = []
    for index in range(optional(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        part = optional(
            nvml,
            lambda index=index: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index),  # type: ignore[misc]
        )
        if part is not None:
            found.append((_card(nvml, part, card), part))
    return found


def _card(nvml: Any, handle: Any, parent: Card | None = None) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = optional(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Card(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        free_bytes=int(memory.free),
        total_bytes=int(memory.total),
        name=_text(optional(nvml, lambda: nvml.nvmlDeviceGetName(handle)) or ""),
        capability=parent.capability if parent else tuple(capability) if capability else None,
        parent=parent.uuid if parent else None,
    )


def _processes(nvml: Any, handle: Any) -> list[tuple[int, int]] | None:
    """Who holds how much, computing and drawing programs alike; None where the driver does not say (an empty
    list in a container or under WSL says nothing, either)."""
    sizes: dict[int, int] = {}
    for call in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in optional(nvml, lambda call=call: call(handle)) or ():  # type: ignore[misc]
            if process.usedGpuMemory is None:
                return None
            sizes[int(process.pid)] = max(sizes.get(int(process.pid), 0), int(process.usedGpuMemory))
    return sorted(sizes.items()) or None


def optional(nvml: Any, call: Callable[[], Any]) -> Any:
    """A value that a card may not support. A lost card is no missing value."""
    try:
        return call()
    except nvml.NVMLError as error:
        if getattr(error, "value", 0) in (15, 16):
            raise
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def update_waits(root: Path = Path("/")) -> bool:
    """Whether the libraries on disk are of another version than the kernel module that runs: contexts go on,
    and new ones will fail. An upgrade leaves our own loaded library in place, so it is looked for by name."""
    try:
        kernel = (root / "sys/module/nvidia/version").read_text("ascii").strip()
        maps = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return False
    for line in maps.splitlines():
        _, slash, path = line.partition("/")
        folder, _, name = path.removesuffix(" (deleted)").rpartition("/")
        if slash and name.startswith("libnvidia-ml.so"):
            real = (Path("/" + folder) / LIBRARY).resolve().name.removeprefix("libnvidia-ml.so.")
            return "." in real and bool(kernel) and real != kernel
    return False


def state_of_error(code: int, root: Path = Path("/")) -> str:
    """The word for a failed call, with a look at the device node for what NVML does not tell apart."""
    node = root / "dev/nvidiactl"
    try:
        with node.open("rb"):
            return gpu_states.state_of_code(code, nodes=True, may_open=True)
    except PermissionError:
        return gpu_states.state_of_code(code, nodes=True, may_open=False)
    except FileNotFoundError:
        loaded = (root / "proc/driver/nvidia/version").exists()
        return gpu_states.state_of_code(code, nodes=False if loaded else None)
    except OSError:
        return gpu_states.state_of_code(code, nodes=True)


def _capability(text: str | None) -> Capability | None:
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor or 0)) if major else None


def main(argv: Sequence[str] | None = None) -> int:
    """Answer until stdin ends. After a failure NVML is initialised anew: an old handle stays bad."""
    parser = argparse.ArgumentParser(prog="python -m daemon.gpu_helper")
    parser.add_argument("--card", default="", help="UUID; else the one with the most free memory")
    parser.add_argument("--visible", help="what CUDA_VISIBLE_DEVICES said")
    parser.add_argument("--lowest", help="least compute capability, 7.5")
    parser.add_argument("--highest", help="greatest compute capability, 9.9")
    parser.add_argument("--root", type=Path, default=Path("/"))
    given = parser.parse_args(argv)
    lowest, highest = _capability(given.lowest), _capability(given.highest)
    try:
        import pynvml as nvml
    except ImportError:
        print(json.dumps({"error": gpu_states.NO_DRIVER}), flush=True)
        return 0
    up, wanted = False, given.card
    for _ in sys.stdin:
        try:
            if not up:
                nvml.nvmlInit()
                up = True
            answer = read_card(nvml, wanted, given.visible, lowest, highest)
            if "error" not in answer:
                wanted = answer["uuid"]  # kept: it may hold our context
                if update_waits(given.root):
                    answer["trouble"] = gpu_states.MISMATCH
        except nvml.NVMLError as error:
            answer = {"error": state_of_error(int(getattr(error, "value", 0)), given.root)}
            try:
                if up:
                    nvml.nvmlShutdown()
            except nvml.NVMLError:
                pass
            up = False
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
