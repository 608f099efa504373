"""Which card is taken, by CUDA's own rules, and what the installed torch has kernels for."""

from __future__ import annotations

import pytest

from daemon import gpu_states
from daemon.gpu_cards import Card, choose, visible
from pipeline.planning.torch_build import TorchBuild, highest_capability, lowest_capability, parse_build

A, B, C = (
    Card(f"GPU-{n}", free, 10, capability=cap)
    for n, free, cap in (("a", 1, (8, 6)), ("b", 5, (6, 1)), ("ab", 3, None))
)
SLICES = (Card("MIG-1", 2, 5, parent="GPU-a"), Card("MIG-2", 4, 5, parent="GPU-a"))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("1", [B]),
        ("2,0", [C, A]),
        ("0,9,1", [A]),  # nothing counts after one that is not there
        ("GPU-b", [B]),
        ("GPU-a", []),  # the beginning of two
        ("GPU-ab, 1", [C, B]),
        ("nonsense", []),
    ],
)
def test_c14_cuda_visible_devices_by_cudas_rules(value: str | None, found: list[Card]) -> None:
    assert visible([A, B, C], value) == found


def test_the_most_free_memory_wins_among_what_is_supported() -> None:
    assert choose([A, B, C]) == B
    assert choose([A, B, C], lowest=(7, 5)) == C, "one that does not tell its capability is taken"
    assert choose([B], lowest=(7, 5)) == gpu_states.UNSUPPORTED
    assert choose([]) == gpu_states.NO_CARD


def test_a_card_newer_than_the_installed_torch_is_not_taken() -> None:
    """Blackwell with the CUDA 12.6 build: "no kernel image is available"."""
    new = Card("GPU-n", 9, 10, capability=(12, 0))
    assert choose([A, new], highest=(9, 9)) == A
    assert choose([new], highest=(9, 9)) == gpu_states.UNSUPPORTED
    assert choose([A, new], highest=(12, 9)) == new
    assert [highest_capability(TorchBuild("x", cuda)) for cuda in ((13, 0), (12, 8), (12, 6), None)] == [
        None, (12, 9), (9, 9), None,
    ]  # fmt: skip
    assert highest_capability(None) is None


def test_a_card_in_slices_cannot_be_used_whole() -> None:
    cards = [A, *SLICES, B]
    assert choose(cards, visible_devices="0") == SLICES[1]
    assert choose(cards, visible_devices="MIG-1") == SLICES[0]
    assert choose(cards, "MIG-1") == SLICES[0]
    assert choose(cards, "GPU-x") == gpu_states.CARD_MISSING


VERSION_FILE = """from typing import Optional

__version__ = '2.14.1+cu130'
debug = False
cuda: Optional[str] = '13.0'
"""


def test_torch_is_known_without_its_import() -> None:
    assert parse_build(VERSION_FILE) == TorchBuild("2.14.1+cu130", (13, 0))
    assert parse_build("__version__ = '2.14.1+cpu'\ncuda: Optional[str] = None\n") == TorchBuild(
        "2.14.1+cpu", None
    )
    assert parse_build("garbage") is None


@pytest.mark.parametrize(
    ("cuda", "lowest"), [((13, 0), (7, 5)), ((12, 8), (7, 0)), ((12, 6), (5, 0)), (None, None)]
)
def test_what_a_build_has_kernels_for(cuda: tuple[int, int] | None, lowest: tuple[int, int] | None) -> None:
    assert lowest_capability(TorchBuild("x", cuda)) == lowest
    assert lowest_capability(None) is None
