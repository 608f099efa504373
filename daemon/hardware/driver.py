"""Which NVIDIA driver would suit the cards that are there, and whether anything is to be done. Pure.

The default policy is `keep`: a driver that works is never touched, and torch follows it. Nothing here
installs; names of packages are the business of the role that does.

Sources: the open kernel module knows Turing and newer, and is the only one for Blackwell
(NVIDIA/open-gpu-kernel-modules 19; "GPU System Processor"); branch 580 is the last for Maxwell, Pascal and
Volta; 525 is the least that CUDA 12 runs with. 470 is the last for Kepler, which no torch of the table uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from daemon.hardware.facts import Facts
from pipeline.planning.torch_choice import BLACKWELL, BLACKWELL_DRIVER, MAXWELL, TURING, TorchChoice, major

OLD_CARDS_LAST, LEAST = 580, 525
Action = Literal["none", "keep", "install", "replace", "restart", "host", "windows"]


@dataclass(frozen=True, slots=True)
class DriverAdvice:
    """`least` and `most` are branches that know all usable cards (`most` None: the newest). `open_module`
    says which kernel module: True only the open one, False only the proprietary one, None either. `reason`
    is a key of [driver] in `pipeline/messages`."""

    action: Action
    reason: str
    least: int | None = None
    most: int | None = None
    open_module: bool | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def to_params(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "action": self.action, "reason": self.reason, "least": self.least, "most": self.most,
            "open_module": self.open_module, "params": dict(self.params),
        }  # fmt: skip


def advise(facts: Facts, torch: TorchChoice) -> DriverAdvice:
    """What to do about the driver, given what torch could do with the one that is there."""
    cards = facts.torch_cards()
    if not cards:
        return DriverAdvice("none", "no_card")
    module, library = facts.driver.module, facts.driver.library
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    params: dict[str, Any] = {"card": names, "module": module or "?", "library": library or "?"}
    known = [card.capability for card in cards if card.capability is not None]
    usable = [capability for capability in known if capability >= MAXWELL]
    if known and not usable:
        return DriverAdvice("none", "card_too_old", params=params)
    old, new = any(c < TURING for c in usable), any(c >= BLACKWELL for c in usable)
    least = BLACKWELL_DRIVER if new else LEAST
    most = OLD_CARDS_LAST if old else None
    which = None if not (old or new) else new
    params |= {"branches": f"{least}-{most}" if most else f"{least}+", "branch": OLD_CARDS_LAST}

    def answer(action: Action, reason: str) -> DriverAdvice:
        return DriverAdvice(action, reason, least, most, which, MappingProxyType(params))

    if facts.wsl:
        return answer("keep" if torch.device == "cuda" else "windows", "windows")
    if facts.container:
        if facts.driver.seen.differs:
            return answer("host", "container_libraries")
        return (
            answer("keep", "works") if torch.device == "cuda" and facts.gpus else answer("host", "container")
        )
    if facts.driver.seen.differs or facts.driver.error == "LibRmVersionMismatch":
        return answer("restart", "mismatch")
    if module is not None:
        if old and not facts.gpus and facts.driver.open_module and (major(module) or 0) <= OLD_CARDS_LAST:
            return answer("replace", "open_module")
        if torch.device != "cuda":
            return answer("replace", "unsuited")
        return answer("keep", "works" if facts.gpus else "silent")
    if old and new:
        return answer("install", "cards_conflict")
    return answer("install", "nouveau" if facts.nouveau else "absent")
