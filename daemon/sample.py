"""One look at the machine's memory as values. None is unknown: never zero, never acted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Resource = Literal["ram", "vram"]


@dataclass(frozen=True, slots=True)
class RamReading:
    """RAM in bytes. `total` is the smaller of MemTotal and the cgroup limit; `source` says what bounded
    it."""

    available_bytes: int
    total_bytes: int
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    stall_ratio: float | None = None  # PSI full avg10, 0..1
    source: str = "meminfo"


@dataclass(frozen=True, slots=True)
class VramReading:
    """One card. `by_pid` is None where the driver tells no per-process numbers (containers, WSL)."""

    free_bytes: int
    total_bytes: int
    uuid: str = ""
    name: str = ""
    by_pid: tuple[tuple[int, int], ...] | None = None
    utilisation_ratio: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: int | None = None
    trouble: str = ""
    """A word of `gpu_states` for what is wrong although it can be read (a driver update waits)."""


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """A child of ours as the policy sees it. `base_rss_bytes` is its size when it became ready, `age_s` how
    long it has been; `keep`: it could not be had back if it were ended (a driver update waits)."""

    name: str  # "web" or "worker:ENGINE"
    pid: int
    rss_bytes: int | None
    vram_bytes: int | None = None
    ready: bool = True
    idle: bool = True
    base_rss_bytes: int | None = None
    age_s: float = 0.0
    keep: bool = False

    @property
    def is_web(self) -> bool:
        return self.name == "web"

    def bytes_of(self, resource: Resource) -> int | None:
        """Its use of one resource."""
        return self.rss_bytes if resource == "ram" else self.vram_bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """All readings of one tick; `vram` is None without a card as well as when it could not be read. `work`
    is the number of jobs that wait or run, None when the queue could not be read."""

    ram: RamReading | None = None
    vram: VramReading | None = None
    own: tuple[OwnProcess, ...] = ()
    work: int | None = None

    def free_bytes(self, resource: Resource) -> int | None:
        """What is left of a resource, None when unknown."""
        if resource == "ram":
            return self.ram.available_bytes if self.ram else None
        return self.vram.free_bytes if self.vram else None

    def used_bytes(self, resource: Resource) -> int | None:
        """What everybody on the machine uses of a resource."""
        if resource == "ram":
            return self.ram.total_bytes - self.ram.available_bytes if self.ram else None
        return self.vram.total_bytes - self.vram.free_bytes if self.vram else None

    def own_bytes(self, resource: Resource) -> int | None:
        """What our children use of it; None as soon as one of the live ones is unknown (for RAM) or when
        nothing at all is known (for VRAM, where most children use none)."""
        known = [process.bytes_of(resource) for process in self.own]
        if resource == "vram":
            some = [value for value in known if value is not None]
            return sum(some) if some or not self.own else None
        if any(value is None for value in known):
            return None
        return sum(value for value in known if value is not None)
