"""From facts to which card, which torch and which hardware class, each with its reason. Pure.

The class follows the memory of the card that will be used (DESIGN 6); a card that no torch can use gives the
class `cpu`. What the configuration says goes before: it is shown beside, and never corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from daemon.hardware.facts import Facts, Gpu, usable_gpus
from pipeline.planning.torch_choice import WHEELS, TorchCard, TorchChoice, choose_torch

GIB = 1024**3
SMALLEST, MIDDLE, LARGE = 3.5 * GIB, 5.5 * GIB, 11.5 * GIB
"""A "4 GB" card reports a little less than 4 GB."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`profile` is what will be used: `configured` where that is set, else `suited`, which is what the
    machine is fit for, for `reason` (a key of [fit] in `pipeline/messages`). `card` is the one that `torch`
    computes on, `gpu` the same as its driver sees it (None while no driver answers)."""

    suited: str
    reason: str
    params: Mapping[str, Any]
    torch: TorchChoice
    gpu: Gpu | None = None
    card: TorchCard | None = None
    configured: str | None = None
    origin: str | None = None

    @property
    def profile(self) -> str:
        """The class that counts."""
        return self.configured or self.suited

    @property
    def overridden(self) -> bool:
        """Whether the configuration says something else than the hardware."""
        return self.configured is not None and self.configured != self.suited

    def to_params(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "profile": self.profile, "suited": self.suited, "reason": self.reason,
            "params": dict(self.params), "configured": self.configured, "origin": self.origin,
            "torch": self.torch.to_params(),
            "card": None if self.gpu is None else self.gpu.uuid,
        }  # fmt: skip


def suited_profile(vram_bytes: int | None) -> str:
    """DESIGN 6: by the memory of the card; None is no card."""
    if vram_bytes is None or vram_bytes < SMALLEST:
        return "cpu"
    if vram_bytes < MIDDLE:
        return "gpu-4g"
    return "gpu-6g" if vram_bytes < LARGE else "gpu-12g"


def fit(
    facts: Facts,
    *,
    gpu: str = "auto",
    configured: str | None = None,
    origin: str | None = None,
    wheels: str = WHEELS,
) -> Fit:
    """What suits this machine. `gpu` as in the configuration: auto, none, or (the beginning of) a UUID;
    `configured` is a hardware class that a person chose, and `origin` where."""
    cards, gpus = facts.torch_cards(), usable_gpus(facts)
    places = list(range(len(cards)))
    if gpu == "none":
        places = []
    elif gpu != "auto" and gpus:
        places = [n for n in places if gpus[n].uuid.startswith(gpu)]
    others = [card.title for card in facts.others]
    torch = choose_torch(
        [cards[n] for n in places], facts.driver.seen, facts.platform, others=others, wheels=wheels
    )
    place = None if torch.card is None else places[torch.card]
    card = None if place is None else cards[place]
    chosen = gpus[place] if place is not None and gpus else None
    name, reason, params = _suited(facts, torch, chosen, gpu, bool(places))
    return Fit(name, reason, MappingProxyType(params), torch, chosen, card, configured, origin)


def _suited(
    facts: Facts, torch: TorchChoice, chosen: Gpu | None, gpu: str, any_card: bool
) -> tuple[str, str, dict[str, Any]]:
    if gpu == "none":
        return "cpu", "told_none", {}
    if not any_card:
        if gpu != "auto" and facts.gpus:
            return "cpu", "card_missing", {"card": gpu}
        return "cpu", "other_card" if facts.others else "no_card", dict(torch.params)
    if torch.device != "cuda":
        return "cpu", "card_unused", dict(torch.params)
    if chosen is None or chosen.total_bytes is None:
        return "cpu", "memory_unknown", dict(torch.params)
    params = {"card": chosen.name, "total": chosen.total_bytes}
    name = suited_profile(chosen.total_bytes)
    return name, "card_small" if name == "cpu" else "by_card", params
