"""Matrix products with fp32, bf16 or int8 weights behind one call.

int8 is weight-only: one scale for each output row, activations stay bf16, so outliers in them cost nothing.
For few rows torch's own kernel multiplies packed int8 directly (memory-bound decoding: half the bytes of
bf16); for many rows the weight is widened once and the product is an ordinary one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

INT8_ROWS = 8
"""Up to so many rows `_weight_int8pack_mm` is faster than widening (2 AMX cores: 65 ms for 8 rows, 690 for
138)."""


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b. `weight` [N, K]; `scale` [N] in the compute dtype only with int8 weights."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K] in the compute dtype -> [..., N] in the same."""
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)
        rows = x.numel() // x.shape[-1]
        if rows <= INT8_ROWS and x.device.type == "cpu":
            y = torch._weight_int8pack_mm(x.reshape(rows, -1), self.weight, self.scale)
            y = y.view(*x.shape[:-1], -1)
            return y if self.bias is None else y + self.bias
        y = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


def take_linear(
    tensors: Mapping[str, torch.Tensor], name: str, device: torch.device, compute: torch.dtype
) -> Linear:
    """The Linear called `name` from a converted part; CPU tensors stay mapped."""
    bias, scale = tensors.get(f"{name}.bias"), tensors.get(f"{name}.scale")
    return Linear(
        tensors[f"{name}.weight"].to(device),
        None if bias is None else bias.to(device),
        None if scale is None else scale.to(device, compute),
    )
