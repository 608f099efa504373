"""Which torch a machine gets: the table, row by row, and that each row is said in both languages."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from pipeline.messages import catalogue, render
from pipeline.planning import torch_choice
from pipeline.planning.torch_choice import (
    FAMILIES,
    WHEELS,
    DriverSeen,
    Platform,
    Reason,
    TorchCard,
    TorchChoice,
    build_suits,
    choose_torch,
)

GIB = 1024**3
CARDS = {
    "GT 710": ((3, 5), 2), "GTX 970": ((5, 2), 4), "GTX 1060": ((6, 1), 6), "TITAN V": ((7, 0), 12),
    "GTX 1650": ((7, 5), 4), "RTX 3060": ((8, 6), 12), "RTX 4060": ((8, 9), 8), "H100": ((9, 0), 80),
    "RTX 5060": ((12, 0), 8), "Rubin": ((13, 0), 24),
}  # fmt: skip
DEFAULT, CUDA12, BLACKWELL12, CPU = (
    "torch>=2.11,<2.16",
    "torch>=2.6,<2.15",
    "torch>=2.7,<2.12",
    "torch>=2.6,<2.16",
)


def card(name: str, free: float | None = None) -> TorchCard:
    capability, size = CARDS[name]
    return TorchCard(name, capability, size * GIB, None if free is None else int(free * GIB))


def choose(name: str, driver: str | None, **platform: typing.Any) -> TorchChoice:
    return choose_torch([card(name)], DriverSeen(driver, driver), Platform(**platform))


@pytest.mark.parametrize(
    ("name", "driver", "family", "reason"),
    [
        ("GTX 970", "470.256.02", "cpu", "driver_too_old"),
        ("GTX 970", "525.60.13", "cu126", "older_card"),
        ("GTX 970", "535.247.01", "cu126", "older_card"),
        ("GTX 970", "580.95.05", "cu126", "older_card"),
        ("GTX 970", "590.48.01", "cpu", "driver_too_new"),
        ("GTX 1060", "550.163.01", "cu126", "older_card"),
        ("TITAN V", "580.95.05", "cu126", "older_card"),
        ("TITAN V", "595.71.05", "cpu", "driver_too_new"),
        ("GT 710", "470.256.02", "cpu", "card_too_old"),
        ("GT 710", None, "cpu", "card_too_old"),
        ("GTX 1650", None, "cpu", "no_driver"),
        ("GTX 1650", "470.256.02", "cpu", "driver_too_old"),
        ("GTX 1650", "524.99", "cpu", "driver_too_old"),
        ("GTX 1650", "525.60.13", "cu126", "older_driver"),
        ("GTX 1650", "579.99", "cu126", "older_driver"),
        ("GTX 1650", "580.65.06", "cu13", "newest"),
        ("RTX 3060", "535.247.01", "cu126", "older_driver"),
        ("RTX 3060", "570.172.08", "cu126", "older_driver"),
        ("RTX 3060", "595.71.05", "cu13", "newest"),
        ("RTX 4060", "550.163.01", "cu126", "older_driver"),
        ("RTX 4060", "580.95.05", "cu13", "newest"),
        ("H100", "535.247.01", "cu126", "older_driver"),
        ("RTX 5060", "550.163.01", "cpu", "driver_old_for_card"),
        ("RTX 5060", "570.172.08", "cu128", "blackwell_older_driver"),
        ("RTX 5060", "580.95.05", "cu13", "newest"),
        ("Rubin", "610.10.01", "cu13", "newest"),
    ],
)  # fmt: skip
def test_card_and_driver_decide(name: str, driver: str | None, family: str, reason: str) -> None:
    found = choose(name, driver)
    assert (found.family, found.reason) == (family, reason)
    assert found.device == ("cpu" if family == "cpu" else "cuda")
    assert found.card == (None if family == "cpu" else 0)


@pytest.mark.parametrize(
    ("family", "name", "driver", "arguments"),
    [
        ("cu13", "RTX 3060", "580.95.05", (DEFAULT,)),
        ("cu126", "GTX 970", "580.95.05", (CUDA12, "--index-url", f"{WHEELS}/cu126")),
        ("cu128", "RTX 5060", "570.172.08", (BLACKWELL12, "--index-url", f"{WHEELS}/cu128")),
        ("cpu", "GTX 970", "470.256.02", (CPU, "--index-url", f"{WHEELS}/cpu")),
    ],
)
def test_each_family_has_its_requirement_and_index(
    family: str, name: str, driver: str, arguments: tuple[str, ...]
) -> None:
    found = choose(name, driver)
    assert found.family == family
    assert found.pip_arguments == arguments


def test_the_bounds_are_where_the_wheels_end() -> None:
    """CUDA 12.6 wheels end with 2.14, CUDA 12.8 with 2.11, and nothing is taken that nobody has tried."""
    allowed = {family.name: SpecifierSet(family.versions) for family in (*FAMILIES, torch_choice.CPU)}
    assert "2.14.1" in allowed["cu126"]
    assert "2.15.0" not in allowed["cu126"]
    assert "2.11.0" in allowed["cu128"]
    assert "2.12.0" not in allowed["cu128"]
    assert {"2.14.1", "2.15.0"} <= set(allowed["cu13"].filter(["2.10.0", "2.14.1", "2.15.0", "2.16.0"]))
    assert "2.10.0" not in allowed["cu13"], "PyPI had CUDA 12.8 until then"
    assert all("2.16.0" not in versions for versions in allowed.values())
    extra = next(
        line for line in (Path(__file__).parents[2] / "pyproject.toml").read_text().splitlines()
        if line.startswith("cosyvoice = ")
    )  # fmt: skip
    for versions in allowed.values():
        assert all(
            v in SpecifierSet(extra.split('"torch')[1].split('"')[0]) for v in versions.filter(["2.11.0"])
        )


def test_a_mirror_takes_the_place_of_pytorchs_own_indexes() -> None:
    found = choose_torch(
        [card("GTX 970")],
        DriverSeen("580.95.05", "580.95.05"),
        wheels="https://mirror.example/pytorch-wheels/",
    )
    assert found.index == "https://mirror.example/pytorch-wheels/cu126"


@pytest.mark.parametrize(
    ("others", "reason"),
    [((), "no_card"), (("AMD Radeon RX 6600",), "other_card"), (("Intel Arc A380",), "other_card")],
)
def test_without_an_nvidia_card_the_processor_speaks(others: tuple[str, ...], reason: str) -> None:
    found = choose_torch([], others=others)
    assert (found.family, found.reason, found.requirement) == ("cpu", reason, CPU)
    assert all(name in render(f"torch.{reason}", "en", found.params) for name in others)


@pytest.mark.parametrize(
    ("frees", "driver", "chosen", "family", "unused"),
    [
        ((8, 11), "580.95.05", "RTX 3060", "cu13", ("GTX 1060",)),  # the larger one decides
        ((8, 3), "580.95.05", "GTX 1060", "cu126", ()),  # the freer one, though older
        ((8, 11), "535.247.01", "RTX 3060", "cu126", ()),
        ((8, 11), "470.256.02", None, "cpu", ()),
        ((8, 11), "595.71.05", "RTX 3060", "cu13", ("GTX 1060",)),
        ((12, 11), "595.71.05", "RTX 3060", "cu13", ("GTX 1060",)),  # the freer one is not driven any more
    ],
)
def test_of_several_cards_the_one_that_will_be_used_decides(
    frees: tuple[int, int], driver: str, chosen: str | None, family: str, unused: tuple[str, ...]
) -> None:
    cards = [card("GTX 1060", frees[0]), card("RTX 3060", frees[1])]
    found = choose_torch(cards, DriverSeen(driver, driver))
    assert found.family == family
    assert (None if found.card is None else cards[found.card].name) == chosen
    assert found.unused == unused


def test_memory_that_is_not_known_does_not_hide_a_card() -> None:
    found = choose_torch([TorchCard("A", (8, 6)), TorchCard("B", (3, 0))], DriverSeen("580.1", "580.1"))
    assert (found.card, found.unused) == (0, ("B",))


@pytest.mark.parametrize(
    ("machine", "name", "driver", "family", "reason", "index"),
    [
        ("aarch64", "RTX 3060", "580.95.05", "cu13", "newest", "cu130"),
        ("aarch64", "RTX 3060", "535.247.01", "cu126", "older_driver", "cu126"),
        ("aarch64", "RTX 5060", "570.172.08", "cu128", "blackwell_older_driver", "cu128"),
        ("aarch64", "GTX 1650", "580.95.05", "cpu", "card_machine", "cpu"),
        ("aarch64", "GTX 970", "580.95.05", "cpu", "card_machine", "cpu"),
        ("riscv64", "RTX 3060", "580.95.05", "none", "no_wheels", None),
        ("armv7l", "RTX 3060", "580.95.05", "none", "no_wheels", None),
        ("i686", "RTX 3060", None, "none", "no_wheels", None),
    ],
)  # fmt: skip
def test_on_other_processors_there_are_other_wheels(
    machine: str, name: str, driver: str | None, family: str, reason: str, index: str | None
) -> None:
    found = choose(name, driver, machine=machine)
    assert (found.family, found.reason) == (family, reason)
    assert found.index == (None if index is None else f"{WHEELS}/{index}")
    assert bool(found.pip_arguments) == (family != "none")


def test_under_wsl_the_driver_has_windows_numbers() -> None:
    """527 of Windows cannot do CUDA 12.0 where 525 of Linux can; what the driver itself says goes before."""
    assert choose("RTX 3060", "527.00").family == "cu126"
    assert choose("RTX 3060", "527.00", wsl=True).family == "cpu"
    assert choose("RTX 3060", "528.33", wsl=True).family == "cu126"
    assert choose("RTX 3060", "581.57", wsl=True).family == "cu13"
    told = DriverSeen(None, "566.36", cuda=(12, 7))
    assert choose_torch([card("RTX 3060")], told, Platform(wsl=True)).family == "cu126"


def test_in_a_container_the_libraries_must_follow_the_host() -> None:
    """After the cure the host's module counts; on a machine of its own it is the updated libraries."""
    differing = DriverSeen("535.247.01", "580.95.05")
    assert choose_torch([card("RTX 3060")], differing, Platform(container=True)).family == "cu126"
    assert choose_torch([card("RTX 3060")], differing, Platform(container=False)).family == "cu13"


def test_what_a_driver_of_a_mismatch_says_about_cuda_is_not_believed() -> None:
    stale = DriverSeen("535.247.01", "580.95.05", cuda=(12, 2))
    assert choose_torch([card("RTX 3060")], stale).family == "cu13"


def test_a_card_that_does_not_tell_its_capability_goes_by_the_driver() -> None:
    unknown = TorchCard("?", None, 8 * GIB)
    assert choose_torch([unknown], DriverSeen("580.1", "580.1")).family == "cu13"
    assert choose_torch([unknown], DriverSeen("550.1", "550.1")).family == "cu126"
    assert choose_torch([unknown], DriverSeen("470.1", "470.1")).reason == "driver_too_old"


@pytest.mark.parametrize(
    ("cuda", "name", "driver", "suits"),
    [
        ((13, 0), "RTX 3060", "580.95.05", True), ((13, 2), "RTX 3060", "580.95.05", True),
        ((13, 0), "RTX 3060", "570.172.08", False), ((13, 0), "GTX 970", "580.95.05", False),
        ((12, 6), "GTX 970", "580.95.05", True), ((12, 6), "RTX 5060", "580.95.05", False),
        ((12, 8), "RTX 5060", "570.172.08", True), ((12, 8), "GTX 1060", "570.172.08", False),
        (None, "RTX 3060", "580.95.05", False), ((14, 0), "RTX 3060", "580.95.05", None),
        ((11, 8), "RTX 3060", "580.95.05", None),
    ],
)  # fmt: skip
def test_whether_what_is_installed_suits(
    cuda: tuple[int, int] | None, name: str, driver: str, suits: bool | None
) -> None:
    assert build_suits(cuda, card(name), DriverSeen(driver, driver), Platform()) is suits


@pytest.mark.parametrize("reason", typing.get_args(Reason))
def test_every_reason_is_said_in_both_languages(reason: str) -> None:
    gpu = reason in ("newest", "older_driver", "older_card", "blackwell_older_driver")
    for language in ("en", "zh"):
        words = catalogue(language)  # type: ignore[arg-type]
        assert f"torch.{reason}" in words
        assert (f"torch.cure_{reason}" in words) != gpu


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.builds(
            TorchCard,
            st.sampled_from(sorted(CARDS)),
            st.none() | st.tuples(st.integers(1, 14), st.integers(0, 9)),
            st.none() | st.integers(0, 2**40),
            st.none() | st.integers(0, 2**40),
        ),
        max_size=4,
    ),
    st.none() | st.from_regex(r"\d{2,3}(\.\d{1,3}){0,2}", fullmatch=True) | st.text(max_size=8),
    st.none() | st.tuples(st.integers(10, 14), st.integers(0, 9)),
    st.sampled_from(["x86_64", "aarch64", "riscv64", ""]),
    st.booleans(),
    st.booleans(),
)
def test_there_is_always_an_answer_and_it_can_be_used(
    cards: list[TorchCard],
    driver: str | None,
    cuda: tuple[int, int] | None,
    machine: str,
    container: bool,
    wsl: bool,
) -> None:
    platform = Platform(machine, container, wsl)
    seen = DriverSeen(driver, driver, cuda)
    found = choose_torch(cards, seen, platform)
    assert (found.requirement is None) == (machine not in ("x86_64", "aarch64"))
    if found.device == "cuda":
        assert found.card is not None
        family = next(family for family in FAMILIES if family.name == found.family)
        assert build_suits(family.cuda, cards[found.card], seen, platform)
