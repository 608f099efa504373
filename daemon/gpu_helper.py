"""Asks NVML for one card: `python -m daemon.gpu_helper [UUID]`, a process of its own.

NVML can hang in the kernel when a card drops off the bus, and has crashed its caller (nvitop 139); here it
takes nothing with it. For each line on stdin one JSON line on stdout: a reading, or `{"error": NAME}`. Ends
on EOF. Run by `daemon.gpu_reader` with a deadline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

MISMATCH, LOST, NO_DRIVER = "driver_mismatch", "gpu_lost", "no_driver"


def error_name(code: int) -> str:
    """NVML's return code as a word: INTERFACES 5.1."""
    names = {18: MISMATCH, 15: LOST, 999: LOST, 9: NO_DRIVER, 12: NO_DRIVER, 16: "reset_required"}
    return names.get(code, f"nvml_{code}")


def read_card(nvml: Any, wanted: str) -> dict[str, Any]:
    """One reading of the card with UUID `wanted`, or of the one with the most free memory.

    Decisions are made on `free`, which the old and the new call share (they disagree on what is used).
    Values that a driver does not support are None. Raises nvml.NVMLError when the card itself cannot be read.
    """
    cards = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        cards.append((uuid == wanted, int(memory.free), handle, _text(uuid), memory))
    if not cards or (wanted and not any(card[0] for card in cards)):
        return {"error": "no_card"}
    _, free, handle, uuid, memory = max(cards, key=lambda card: (card[0], card[1]))

    def optional(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except nvml.NVMLError:
            return None

    processes = optional(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    by_pid = None
    if processes and all(p.usedGpuMemory is not None for p in processes):
        by_pid = [(int(p.pid), int(p.usedGpuMemory)) for p in processes]
    rates = optional(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    power = optional(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return {
        "free_bytes": free,
        "total_bytes": int(memory.total),
        "uuid": uuid,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "by_pid": by_pid,
        "utilisation_ratio": None if rates is None else rates.gpu / 100,
        "temperature_c": optional(lambda: float(nvml.nvmlDeviceGetTemperature(handle, 0))),
        "power_w": None if power is None else power / 1000,
    }


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> int:
    """Answer until stdin ends. After a failure NVML is initialised anew: an old handle stays bad."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        import pynvml as nvml
    except ImportError:
        print(json.dumps({"error": NO_DRIVER}), flush=True)
        return 0
    up = False
    for _ in sys.stdin:
        try:
            if not up:
                nvml.nvmlInit()
                up = True
            answer = read_card(nvml, wanted)
        except nvml.NVMLError as error:
            answer = {"error": error_name(int(getattr(error, "value", 0)))}
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
