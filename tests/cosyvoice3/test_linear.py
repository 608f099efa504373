"""int8 products: the kernels against the same product in float64, and the rule that picks one."""

from __future__ import annotations

import pytest

from tests.cosyvoice3.conftest import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.engines.cosyvoice3 import linear as module  # noqa: E402
from pipeline.engines.cosyvoice3.linear import (  # noqa: E402
    INT8_ROWS,
    Linear,
    SplitLinear,
    split_linear,
)
from pipeline.planning.processor import int8_units  # noqa: E402


def weights(n: int = 96, k: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(-127, 128, (n, k), generator=generator, dtype=torch.int8)
    return weight, torch.rand(n, generator=generator) * 0.01 + 1e-3


def exact(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.double() @ weight.double().t() * scale.double()


@pytest.fixture
def split() -> SplitLinear:
    if not int8_units():
        pytest.skip("not asked for: this processor has no int8 matrix units")
    made = split_linear(*weights())
    assert made is not None, "torch's kernel is not what it was"
    return made


@pytest.mark.parametrize("rows", [1, 2, 4, 7, 33])
def test_the_split_product_is_exact_to_fifteen_bits(split: SplitLinear, rows: int) -> None:
    weight, scale = weights()
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))
    error = (split(x) - exact(x, weight, scale)).abs().amax(1)
    # a truncated step of each of 64 products, and each is at most the largest activation over 32512
    bound = x.abs().amax(1) / 32512 * (weight.double().abs() * scale.double()[:, None]).sum(1).max()
    assert (error <= bound).all()


def test_an_outlier_costs_the_others_less_than_bf16_would(split: SplitLinear) -> None:
    """One activation a thousand times the others, as language models have them."""
    weight, scale = weights()
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    x[0, 5] = 1000.0
    wanted = exact(x, weight, scale)
    in_bf16 = Linear(weight, None, scale.bfloat16(), INT8_ROWS)(x.bfloat16())
    assert (split(x) - wanted).norm() < 0.2 * (in_bf16 - wanted).norm()


def test_rows_do_not_depend_on_each_other_and_zeros_stay_zeros(split: SplitLinear) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)) * torch.tensor(
        [[1], [90], [0], [1e-4]]
    )
    together = split(x)
    for row in range(4):
        torch.testing.assert_close(together[row], split(x[row : row + 1])[0], rtol=0, atol=0)
    assert not together[2].any()


def test_without_int8_units_or_the_kernel_the_plain_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "int8_units", lambda: False)
    assert split_linear(*weights()) is None
    monkeypatch.setattr(module, "int8_units", lambda: True)

    def lacking(weight: torch.Tensor, scale: torch.Tensor) -> SplitLinear:
        raise AttributeError("qlinear_prepack")

    monkeypatch.setattr(SplitLinear, "pack", lacking)
    assert split_linear(*weights()) is None


def test_a_kernel_that_multiplies_wrongly_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "int8_units", lambda: True)
    monkeypatch.setattr(SplitLinear, "pack", lambda weight, scale: lambda x: x @ weight.float().t())
    assert split_linear(*weights()) is None


@pytest.mark.parametrize("rows", [1, INT8_ROWS, INT8_ROWS + 1])
def test_packed_and_widened_products_agree(rows: int) -> None:
    weight, scale = weights()
    bias = torch.randn(96).bfloat16()
    x = torch.randn(rows, 64).bfloat16()
    packed = Linear(weight, bias, scale.bfloat16(), INT8_ROWS)(x).float()
    wide = Linear(weight, bias, scale.bfloat16(), 0)(x).float()
    torch.testing.assert_close(packed, wide, rtol=2e-2, atol=2e-2)
