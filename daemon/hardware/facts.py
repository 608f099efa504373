"""Facts about a machine as frozen values. None is "not known", which is never zero and never acted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any

from pipeline.planning.torch_choice import DriverSeen, Platform, TorchCard

Capability = tuple[int, int]
NVIDIA, AMD, INTEL = "10de", "1002", "8086"
MAKERS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}


@dataclass(frozen=True, slots=True)
class PciCard:
    """A display controller on the PCI bus. `vendor` and `device` are hex without 0x, `driver` is the kernel
    driver that holds it, `generation` NVIDIA's (a key of `pci.GENERATIONS`)."""

    slot: str
    vendor: str
    device: str
    name: str = ""
    driver: str | None = None
    generation: str | None = None

    @property
    def maker(self) -> str:
        """A word for the vendor, or its number."""
        return MAKERS.get(self.vendor, self.vendor)

    @property
    def title(self) -> str:
        """For people: the marketing name in brackets where there is one."""
        _, bracket, rest = self.name.partition("[")
        short = rest.partition("]")[0] if bracket else self.name
        known = short or f"{self.vendor}:{self.device}"
        return known if known.startswith(self.maker) else f"{self.maker} {known}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A program that has memory of a card. `container` is its kind (docker, podman, lxc ...), "" outside."""

    pid: int
    name: str
    bytes: int | None = None
    container: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA card that its driver answers for. `holders` is None where the driver does not say."""

    uuid: str
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: Capability | None = None
    slot: str = ""
    holders: tuple[Holder, ...] | None = None
    utilisation_ratio: float | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """`module` and `library` are versions; `open_module` tells the open kernel module from
    the proprietary one; `error` is NVML's own word (or `timeout`, `died`) for why no card answered."""

    module: str | None = None
    library: str | None = None
    cuda: tuple[int, int] | None = None
    open_module: bool | None = None
    error: str | None = None

    @property
    def seen(self) -> DriverSeen:
        """As `choose_torch` wants it."""
        return DriverSeen(self.module, self.library, self.cuda)


@dataclass(frozen=True, slots=True)
class Swap:
    """A swap area that is in use: `kind` is partition, file or zram."""

    name: str
    kind: str
    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `sources` says for each field where its value came from.

    `virtualization` is systemd-detect-virt's word ("none" on bare metal), `container` whether it is one of
    those; `secure_boot` is on, off or absent (no UEFI); `headers` whether the running kernel's are there to
    build a module against; `clock_synced` is what the time service says; `port_holder` has the page's port.
    """

    os_id: str | None = None
    os_version: str | None = None
    os_name: str | None = None
    kernel: str | None = None
    machine: str = "x86_64"
    virtualization: str | None = None
    container: bool | None = None
    wsl: bool = False
    pci: tuple[PciCard, ...] | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: Driver = field(default_factory=Driver)
    nouveau: bool | None = None
    headers: bool | None = None
    secure_boot: str | None = None
    ram_bytes: int | None = None
    ram_available_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    swaps: tuple[Swap, ...] | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    disk_kind: str | None = None
    cpu_name: str | None = None
    cpu_count: int | None = None
    cpu_flags: tuple[str, ...] | None = None
    clock_synced: bool | None = None
    clock_s: float | None = None
    port: int | None = None
    port_free: bool | None = None
    port_holder: str | None = None
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def nvidia(self) -> tuple[PciCard, ...]:
        """NVIDIA's cards on the bus, with a driver or without."""
        return tuple(card for card in self.pci or () if card.vendor == NVIDIA)

    @property
    def others(self) -> tuple[PciCard, ...]:
        """Cards of AMD and Intel: seen, and not used."""
        return tuple(card for card in self.pci or () if card.vendor in (AMD, INTEL))

    @property
    def platform(self) -> Platform:
        """As `choose_torch` wants it."""
        return Platform(self.machine, bool(self.container), self.wsl)

    def torch_cards(self) -> tuple[TorchCard, ...]:
        """The cards that the driver answers for; if none, those on the bus, by their generation."""
        if self.gpus:
            return tuple(
                TorchCard(gpu.name, gpu.capability, gpu.total_bytes, gpu.free_bytes)
                for gpu in usable_gpus(self)
            )
        from daemon.hardware.pci import GENERATIONS

        return tuple(
            TorchCard(card.title, GENERATIONS[card.generation] if card.generation else None)
            for card in self.nvidia
        )

    def to_params(self) -> dict[str, Any]:
        """The JSON form, without `sources`."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "sources"}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def usable_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """`facts.gpus` in the order of `torch_cards`: slices in place of a card that is cut."""
    cut = {gpu.parent for gpu in facts.gpus if gpu.parent}
    return tuple(gpu for gpu in facts.gpus if gpu.uuid not in cut)
