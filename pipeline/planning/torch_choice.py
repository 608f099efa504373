"""Which torch to install: from cards, driver and platform to wheel family, pip requirement and reason. Pure.

Called by the check-up, by `cosyd admin profile detect` and by the installer (`python -m daemon.hardware`).
What an *installed* torch can do is told by `torch_build`, from its files.

Sources of the table:
- Drivers: CUDA 13.x wants 580 or newer, CUDA 12.x 525 or newer (on Windows 528): minor version compatibility,
  docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
- Kernels in the wheels: RELEASE.md of pytorch/pytorch, "CUDA Support Matrix" (pull request 182849), and
  .ci/manywheel/build_cuda.sh. On x86-64 CUDA 12.6 has 5.0 to 9.0, CUDA 12.8 has 7.0 (later 7.5) to 12.0, and
  CUDA 13 has 7.5 to 12.0 and, as PTX, what comes after it. On aarch64 each begins with 8.0. A kernel runs on
  every later minor of its major version: 8.0 on 8.6, 6.0 on 6.1.
- CUDA 12.8 wheels end with torch 2.11 (pytorch/pytorch 178665), CUDA 12.6 wheels with 2.14 (190385); what
  PyPI carries is CUDA 13 since 2.11 (172663).
- Blackwell is known to drivers from 570 on. Maxwell, Pascal and Volta are unknown to drivers from 590 on
  (NixOS/nixos-hardware 1880: "595.71.05 will ignore this GPU").
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Capability = tuple[int, int]
MAXWELL, VOLTA, TURING, AMPERE, BLACKWELL = (5, 0), (7, 0), (7, 5), (8, 0), (10, 0)

WHEELS = "https://download.pytorch.org/whl"
UNTESTED = "2.16"
"""Torch releases from here on may need a newer CUDA than the table knows."""
BLACKWELL_DRIVER = 570
FIRST_DRIVER_WITHOUT_OLD_CARDS = 590


@dataclass(frozen=True, slots=True)
class Family:
    """Wheels of one CUDA version. `kernels` is the range of compute capabilities by machine, both ends
    included, None where newer cards compile it themselves."""

    name: str
    cuda: tuple[int, int]
    versions: str
    index: Mapping[str, str]
    least_driver: int
    least_driver_windows: int
    kernels: Mapping[str, tuple[Capability, Capability | None]]


FAMILIES = (
    Family(
        "cu13", (13, 0), f">=2.11,<{UNTESTED}", {"aarch64": "cu130"}, 580, 580,
        {"x86_64": (TURING, None), "aarch64": (AMPERE, None)},
    ),
    Family(
        "cu126", (12, 6), ">=2.6,<2.15", {"x86_64": "cu126", "aarch64": "cu126"}, 525, 528,
        {"x86_64": (MAXWELL, (9, 9)), "aarch64": (AMPERE, (9, 9))},
    ),
    Family(
        "cu128", (12, 8), ">=2.7,<2.12", {"x86_64": "cu128", "aarch64": "cu128"}, 525, 528,
        {"x86_64": (TURING, (12, 9)), "aarch64": (AMPERE, (12, 9))},
    ),
)  # fmt: skip
"""In order of preference. Without an index the wheels are those of PyPI."""

CPU = Family("cpu", (0, 0), f">=2.6,<{UNTESTED}", {"x86_64": "cpu", "aarch64": "cpu"}, 0, 0, {})

Reason = Literal[
    "newest", "older_driver", "older_card", "blackwell_older_driver",
    "no_card", "other_card", "no_driver", "driver_too_old", "driver_old_for_card", "driver_too_new",
    "card_too_old", "card_machine", "no_wheels",
]  # fmt: skip
"""Keys of [torch] in `pipeline/messages`; those after the first line mean the processor, and have a cure."""


@dataclass(frozen=True, slots=True)
class TorchCard:
    """An NVIDIA card. `capability` may be that of its generation; memory is None where nobody could ask."""

    name: str
    capability: Capability | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """Versions of the kernel module and of the libraries, None when not there; `cuda` is the newest that the
    driver itself says it can do, which is better than its number (under WSL that is Windows's)."""

    module: str | None = None
    library: str | None = None
    cuda: tuple[int, int] | None = None

    @property
    def differs(self) -> bool:
        """Whether module and libraries are of different versions: no new context can be made."""
        return bool(self.module and self.library and self.module != self.library)

    def after_cure(self, container: bool) -> str | None:
        """The version that will work once module and libraries agree: in a container the libraries must
        follow the host's module; elsewhere a restart loads the module of the libraries on disk."""
        if self.differs:
            return self.module if container else self.library
        return self.module or self.library


@dataclass(frozen=True, slots=True)
class Platform:
    """Where torch will run: `machine` as `uname -m` says."""

    machine: str = "x86_64"
    container: bool = False
    wsl: bool = False


@dataclass(frozen=True, slots=True)
class TorchChoice:
    """`family` is one of FAMILIES, `cpu` or `none`. `card` is the place of the card that will be used among
    those given; `unused` names the others that this build cannot use."""

    family: str
    reason: Reason
    requirement: str | None
    index: str | None = None
    card: int | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    unused: tuple[str, ...] = ()

    @property
    def device(self) -> Literal["cuda", "cpu", "none"]:
        """What torch will compute on."""
        return "none" if self.requirement is None else "cpu" if self.family == CPU.name else "cuda"

    @property
    def pip_arguments(self) -> tuple[str, ...]:
        """For one `pip install` of its own, before the rest: with an *extra* index a later release of PyPI
        would win over the family; once torch is there, `cosyd[cosyvoice]` leaves it alone."""
        if self.requirement is None:
            return ()
        return (self.requirement, *(("--index-url", self.index) if self.index else ()))

    @property
    def pip_command(self) -> str:
        """The same for a shell."""
        return shlex.join(("pip", "install", *self.pip_arguments))

    def to_params(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "family": self.family, "device": self.device, "reason": self.reason, "card": self.card,
            "requirement": self.requirement, "index": self.index, "pip": list(self.pip_arguments),
            "params": dict(self.params), "unused": list(self.unused),
        }  # fmt: skip


def major(version: str | None) -> int | None:
    """580 of `580.65.06`; None when it is no version."""
    found = re.match(r"(\d+)(\.\d+)*$", (version or "").strip())
    return int(found[1]) if found else None


def choose_torch(
    cards: Sequence[TorchCard],
    driver: DriverSeen = DriverSeen(),
    platform: Platform = Platform(),
    *,
    others: Sequence[str] = (),
    wheels: str = WHEELS,
) -> TorchChoice:
    """The build for this machine. `others` are cards of other makers, which are named and not used; `wheels`
    is the folder of PyTorch's indexes, for mirrors.

    Of several cards the one with the most free memory that any build can use decides, as the supervisor does
    (`daemon.gpu_cards.choose`). Never raises.
    """
    version = driver.after_cure(platform.container)
    if platform.machine not in CPU.index:
        return TorchChoice("none", "no_wheels", None, params={"machine": platform.machine})
    if not cards:
        names = ", ".join(others)
        reason: Reason = "other_card" if others else "no_card"
        return _build(CPU, reason, None, {"card": names} if others else {}, platform, wheels)
    order = sorted(range(len(cards)), key=lambda n: -_memory(cards[n]))
    for place in order:
        found = _family(cards[place], version, driver, platform)
        if found is not None:
            family, reason = found
            without = [c for n, c in enumerate(cards) if n != place and not _has_kernels(family, c, platform)]
            unused = tuple(card.name for card in without)
            params = _params(cards[place], version)
            return _build(family, reason, place, params, platform, wheels, unused)
    first = cards[order[0]]
    return _build(
        CPU, _why_not(first, version, driver, platform), None, _params(first, version), platform, wheels
    )


def build_suits(
    cuda: tuple[int, int] | None, card: TorchCard, driver: DriverSeen, platform: Platform
) -> bool | None:
    """Whether an installed build for `cuda` (None: a CPU build) can compute on this card; None when the table
    does not know such a build."""
    if cuda is None:
        return False
    name = "cu13" if cuda[0] == 13 else "cu128" if cuda in ((12, 8), (12, 9)) else "cu126"
    if cuda[0] > 13 or cuda < (12, 0):
        return None
    family = next(family for family in FAMILIES if family.name == name)
    version = driver.after_cure(platform.container)
    return _runs(family, version, driver, platform) and _has_kernels(family, card, platform)


def _memory(card: TorchCard) -> int:
    return card.free_bytes if card.free_bytes is not None else card.total_bytes or 0


def _params(card: TorchCard, version: str | None) -> dict[str, Any]:
    shown = ".".join(map(str, card.capability)) if card.capability else "?"
    return {"card": card.name, "capability": shown, "driver": version or "?"}


def _build(
    family: Family,
    reason: Reason,
    card: int | None,
    params: Mapping[str, Any],
    platform: Platform,
    wheels: str,
    unused: tuple[str, ...] = (),
) -> TorchChoice:
    folder = family.index.get(platform.machine)
    return TorchChoice(
        family.name, reason, f"torch{family.versions}", f"{wheels.rstrip('/')}/{folder}" if folder else None,
        card, MappingProxyType({**params, "machine": platform.machine}), unused,
    )  # fmt: skip


def _has_kernels(family: Family, card: TorchCard, platform: Platform) -> bool:
    lowest, highest = family.kernels[platform.machine]
    return card.capability is None or (
        card.capability >= lowest and (highest is None or card.capability <= highest)
    )


def _runs(family: Family, version: str | None, driver: DriverSeen, platform: Platform) -> bool:
    if driver.cuda is not None and not driver.differs:
        return driver.cuda[0] >= family.cuda[0]
    least = family.least_driver_windows if platform.wsl else family.least_driver
    return (major(version) or 0) >= least


def _knows_card(card: TorchCard, version: str | None) -> Reason | None:
    """Why this driver does not drive this card at all; None when it does."""
    number = major(version)
    if number is None or card.capability is None:
        return None
    if card.capability >= BLACKWELL and number < BLACKWELL_DRIVER:
        return "driver_old_for_card"
    if card.capability < TURING and number >= FIRST_DRIVER_WITHOUT_OLD_CARDS:
        return "driver_too_new"
    return None


def _family(
    card: TorchCard, version: str | None, driver: DriverSeen, platform: Platform
) -> tuple[Family, Reason] | None:
    if _knows_card(card, version) is not None:
        return None
    for family in FAMILIES:
        if _runs(family, version, driver, platform) and _has_kernels(family, card, platform):
            if family is FAMILIES[0]:
                return family, "newest"
            old = card.capability is not None and card.capability < TURING
            if family.name == "cu128":
                return family, "blackwell_older_driver"
            return family, "older_card" if old else "older_driver"
    return None


def _why_not(card: TorchCard, version: str | None, driver: DriverSeen, platform: Platform) -> Reason:
    if card.capability is not None:
        if card.capability < MAXWELL:
            return "card_too_old"
        if all(not _has_kernels(family, card, platform) for family in FAMILIES):
            return "card_machine"
    if version is None and driver.cuda is None:
        return "no_driver"
    return _knows_card(card, version) or "driver_too_old"
