"""What card this machine has, seen by a short child; and which profile suits it (pure).

NVML can block for good when a card is lost, and is memory that nobody wants to keep, so it is asked in a
process of its own with a deadline: `python -m daemon.cli.hardware` prints one JSON line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

PROBE_S = 10.0
GIB = 1024**3
_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Card:
    """A card as NVML sees it."""

    name: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probe found. `kernel` and `library` are driver versions, None when not there; `error` is
    NVML's own word for why the library saw nothing."""

    kernel: str | None = None
    library: str | None = None
    cards: tuple[Card, ...] = ()
    error: str | None = None


def suited_profile(vram_bytes: int | None) -> str:
    """DESIGN 6: by the memory of the largest card; None is no card. A "4 GB" card reports a little less."""
    if vram_bytes is None or vram_bytes < 3.5 * GIB:
        return "cpu"
    if vram_bytes < 5.5 * GIB:
        return "gpu-4g"
    return "gpu-6g" if vram_bytes < 11.5 * GIB else "gpu-12g"


def kernel_version(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, proprietary and open module alike."""
    first = text.splitlines()[0] if text else ""
    found = [word for word in first.split() if word[:1].isdigit() and "." in word]
    return found[0] if found else None


def probe() -> Seen:
    """Ask in a child. A child that hangs or dies is reported as `error`."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "daemon.cli.hardware"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_S,
        )  # fmt: skip
        found = json.loads(child.stdout)
        return Seen(
            found["kernel"], found["library"], tuple(Card(**c) for c in found["cards"]), found["error"]
        )
    except subprocess.TimeoutExpired:
        return Seen(error="timeout")
    except (ValueError, KeyError, TypeError):
        return Seen(error="died")


def _look() -> Seen:
    kernel = kernel_version(_KERNEL_DRIVER.read_text()) if _KERNEL_DRIVER.exists() else None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Seen(kernel=kernel, error=type(error).__name__.removeprefix("NVMLError_"))
    cards = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        cards.append(Card(str(name), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)))
    return Seen(kernel, str(pynvml.nvmlSystemGetDriverVersion()), tuple(cards))


if __name__ == "__main__":
    print(json.dumps(asdict(_look())))
