"""What card this machine has, in short, for the memory plan and the support bundle."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.hardware import nvml
from daemon.hardware.host import Host, RealHost
from daemon.hardware.nvidia import module_version


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


def probe(host: Host | None = None) -> Seen:
    """The cards and the driver. One that hangs or dies while it is asked is reported as `error`. All
    facts: `daemon.hardware.reader`."""
    host = host or RealHost()
    module = module_version(host.text("/proc/driver/nvidia/version")).module
    gpus, driver = nvml.ask(host)
    cards = tuple(Card(gpu.name, gpu.total_bytes) for gpu in gpus if gpu.total_bytes)
    return Seen(module, driver.library, cards, driver.error)
