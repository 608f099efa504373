"""Display controllers from `lspci -nn -vmm -k` or from sysfs, and NVIDIA's generations by chip. Pure.

Generations: the chip's code name where the PCI database of the machine knows it, else the device number, by
the ranges of that database (pci-ids.ucw.cz, vendor 10de). The compute capability is the least of the
generation (NVIDIA's table "CUDA GPUs").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from daemon.hardware.facts import NVIDIA, Capability, PciCard

GENERATIONS: Mapping[str, Capability] = {
    "fermi": (2, 0),
    "kepler": (3, 0),
    "maxwell": (5, 0),
    "pascal": (6, 0),
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
}
"""Oldest first, with the least compute capability."""

_CHIPS = {
    "GF": "fermi", "GK": "kepler", "GM": "maxwell", "GP": "pascal", "GV": "volta", "TU": "turing",
    "GA": "ampere", "AD": "ada", "GH": "hopper", "GB": "blackwell",
}  # fmt: skip

_RANGES = (
    (0x06C0, 0x06DF, "fermi"), (0x0DC0, 0x0FBF, "fermi"), (0x1040, 0x10BF, "fermi"),
    (0x1200, 0x125F, "fermi"),
    (0x0FC0, 0x103F, "kepler"), (0x1180, 0x11FF, "kepler"), (0x1280, 0x12BF, "kepler"),
    (0x1340, 0x143F, "maxwell"), (0x15F0, 0x15FF, "pascal"), (0x1610, 0x17FF, "maxwell"),
    (0x1B00, 0x1D7F, "pascal"), (0x1D80, 0x1DFF, "volta"),
    (0x1E00, 0x1FFF, "turing"), (0x2080, 0x20FF, "ampere"), (0x2180, 0x21FF, "turing"),
    (0x2200, 0x22FF, "ampere"), (0x2300, 0x237F, "hopper"), (0x2400, 0x25FF, "ampere"),
    (0x2680, 0x28FF, "ada"), (0x2900, 0x31FF, "blackwell"),
)  # fmt: skip


def generation(device: str, name: str = "") -> str | None:
    """The generation of an NVIDIA device; None for one that is not known (newer than this table)."""
    chip = re.match(r"(?:NVIDIA )?([A-Z]{2})\d", name)
    if chip and chip[1] in _CHIPS:
        return _CHIPS[chip[1]]
    number = int(device, 16)
    return next((word for low, high, word in _RANGES if low <= number <= high), None)


def parse_lspci(text: str) -> tuple[PciCard, ...]:
    """Display controllers (class 03) of `lspci -nn -vmm -k`."""
    cards = []
    for block in text.strip().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key.strip(), value.strip())
        if not _number(fields.get("Class", "")).startswith("03"):
            continue
        vendor, device = _number(fields.get("Vendor", "")), _number(fields.get("Device", ""))
        if vendor and device:
            name = _bare(fields["Device"])
            cards.append(_card(fields.get("Slot", ""), vendor, device, name, fields.get("Driver")))
    return tuple(cards)


def from_sysfs(slot: str, values: Mapping[str, str | None], driver: str | None) -> PciCard | None:
    """One device of /sys/bus/pci/devices from its files `class`, `vendor` and `device`; None for anything but
    a display controller."""
    kind, vendor, device = (
        (values.get(n) or "").strip().removeprefix("0x") for n in ("class", "vendor", "device")
    )
    if not kind.startswith("03") or not re.fullmatch(r"[0-9a-f]{4}", vendor):
        return None
    return _card(slot, vendor, device, "", driver) if re.fullmatch(r"[0-9a-f]{4}", device) else None


def _card(slot: str, vendor: str, device: str, name: str, driver: str | None) -> PciCard:
    slot = slot if slot.count(":") == 2 else f"0000:{slot}"
    if name == "Device":
        name = ""  # what lspci says where its database does not know the number
    known = generation(device, name) if vendor == NVIDIA else None
    return PciCard(slot, vendor, device, name, driver, known)


def _number(text: str) -> str:
    """The number at the end: 10de of `NVIDIA Corporation [10de]`."""
    found = re.search(r"\[([0-9a-f]{4})\]$", text)
    return found[1] if found else ""


def _bare(text: str) -> str:
    return re.sub(r"\s*\[[0-9a-f]{4}\]$", "", text)
