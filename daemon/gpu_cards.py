"""Which card to use: a UUID, or the one with the most free memory that the installed torch supports. Pure.

The order of NVML is that of the PCI bus, which CUDA uses too when CUDA_DEVICE_ORDER=PCI_BUS_ID (set for each
child); a card is kept and handed on by UUID, since indices are not the same everywhere (pynvml 28).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daemon import gpu_states

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a MIG slice of one (`parent` is the card's UUID, `capability` the card's)."""

    uuid: str
    free_bytes: int
    total_bytes: int
    name: str = ""
    capability: Capability | None = None
    parent: str | None = None


def visible(cards: Sequence[Card], value: str | None) -> list[Card]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order, by CUDA's rules: numbers of cards or beginnings of
    UUIDs, and nothing after the first entry that names no card. None: everything."""
    if value is None:
        return list(cards)
    whole = [card for card in cards if card.parent is None]
    found: list[Card] = []
    for entry in value.split(","):
        entry = entry.strip()
        if entry.isdigit():
            picked = whole[int(entry) : int(entry) + 1]
        elif entry.startswith(("GPU-", "MIG-")):
            picked = [card for card in cards if card.uuid.startswith(entry)]
        else:
            picked = []
        if len(picked) != 1:
            break  # -1, a number too large, an ambiguous beginning
        found += picked
    return found


def usable(cards: Sequence[Card], among: Sequence[Card]) -> list[Card]:
    """Of `among` what can compute: a card that is cut in slices gives its slices instead."""
    parents = {card.parent for card in cards if card.parent}
    found: list[Card] = []
    for card in among:
        found += [s for s in cards if s.parent == card.uuid] if card.uuid in parents else [card]
    return list(dict.fromkeys(found))


def choose(
    cards: Sequence[Card],
    wanted: str = "",
    visible_devices: str | None = None,
    lowest: Capability | None = None,
    highest: Capability | None = None,
) -> Card | str:
    """The card, or the word for why there is none. `lowest` and `highest` are the ends of what torch has
    kernels for; a card that does not tell its own compute capability is taken."""
    if wanted:
        found = [card for card in cards if card.uuid.startswith(wanted)]
        return found[0] if found else gpu_states.CARD_MISSING
    if not cards:
        return gpu_states.NO_CARD
    left = usable(cards, visible(cards, visible_devices))
    if not left:
        return gpu_states.NONE_VISIBLE
    fit = [
        c
        for c in left
        if c.capability is None
        or ((lowest is None or c.capability >= lowest) and (highest is None or c.capability <= highest))
    ]
    if not fit:
        return gpu_states.UNSUPPORTED
    return max(fit, key=lambda card: card.free_bytes)
