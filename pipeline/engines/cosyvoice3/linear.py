"""Matrix products with fp32, bf16 or int8 weights behind one call.

int8 is weight-only: one scale for each output row, so outliers of the activations cost nothing. Kernels, each
where it was measured to be the fastest (2 AMX cores, the 24 layers of the language model):

- few rows on a CPU: `_weight_int8pack_mm`, bf16 activations (half the bytes of bf16 weights);
- short and wide weights on a CPU with int8 units: `SplitLinear`, integer products of oneDNN;
- many rows on a CPU: widened once, then an ordinary product;
- a card: whichever of the packed kernel and widening is quicker there, timed once (`choose_cuda_kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from pipeline.planning.processor import int8_units

INT8_ROWS = 8
"""Up to so many rows `_weight_int8pack_mm` is faster than widening (2 AMX cores: 65 ms for 8 rows, 690 for
138)."""

SPLIT_TOP = 127 * 256
"""Largest activation after scaling: 15 bits, as a high byte times 256 and a low byte."""


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b. `weight` [N, K]; `scale` [N] in the compute dtype only with int8 weights."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    packed_rows: int = 0
    """Up to so many rows go to the packed kernel."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K] in the compute dtype -> [..., N] in the same."""
        if self.scale is None:
            return F.linear(x, self.weight, self.bias)
        rows = x.numel() // x.shape[-1]
        if rows <= self.packed_rows:
            y = torch._weight_int8pack_mm(x.reshape(rows, -1), self.weight, self.scale)
            y = y.view(*x.shape[:-1], -1)
            return y if self.bias is None else y + self.bias
        y = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True)
class SplitLinear:
    """int8 weights times activations of 15 bits, as two rows of integers for each row: exact to 3e-5 of the
    row's largest product, where bf16 activations are to 3e-3.

    v = trunc(x / step) with |v| <= SPLIT_TOP is read as bytes: a signed high one and an unsigned low one,
    which an XOR makes signed (low - 128); what that takes away, 128 times the sum of each weight row, comes
    back as a bias. `_packed` is oneDNN's own layout, so the weights are a private copy.
    """

    _packed: torch.Tensor
    _scale: torch.Tensor
    _zero: torch.Tensor
    _restored: torch.Tensor

    @classmethod
    def pack(cls, weight: torch.Tensor, scale: torch.Tensor) -> SplitLinear:
        """From int8 [N, K] and float32 [N]. Raises RuntimeError or AttributeError where torch lacks the
        kernel."""
        sums = weight.sum(dim=1, dtype=torch.int32).float()
        return cls(
            torch.ops.onednn.qlinear_prepack(weight, [2, weight.shape[1]]),
            scale.float().contiguous(),
            torch.zeros(weight.shape[0], dtype=torch.int32),
            sums * scale.float() * (128.0 / 257.0),  # added to both rows, of which one counts 256 times
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [R, K] -> float32 [R, N]. A row of zeros divides by zero, and that times zero is zero:
        integers are finite."""
        step = x.abs().amax(dim=-1, keepdim=True).mul_(1.0 / SPLIT_TOP)
        whole = (x / step).to(torch.int16).bitwise_xor_(128)
        split = whole.view(torch.int8).view(*x.shape, 2).permute(2, 0, 1).reshape(-1, x.shape[1])
        y = torch.ops.onednn.qlinear_pointwise.default(
            split, 1.0, 0, self._packed, self._scale, self._zero, self._restored, 1.0, 0, torch.float32,
            "none", [], "",
        )  # fmt: skip
        low, high = y.view(2, *x.shape[:-1], -1)
        return torch.add(low, high, alpha=256).mul_(step)


def split_linear(weight: torch.Tensor, scale: torch.Tensor) -> SplitLinear | None:
    """A SplitLinear that was seen to multiply rightly, or None: the kernel has no public name, so a version
    of torch may lack it or mean something else by it."""
    if weight.device.type != "cpu" or not int8_units():
        return None
    try:
        made = SplitLinear.pack(weight, scale)
        probe = torch.linspace(-3.0, 2.0, 3 * weight.shape[1]).sin_().view(3, -1)
        wanted = F.linear(probe, weight.float()) * scale.float()
        right = bool(((made(probe) - wanted).abs().max() <= 1e-3 * wanted.abs().max()).item())
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None
    return made if right else None


def take_linear(
    tensors: Mapping[str, torch.Tensor], name: str, device: torch.device, compute: torch.dtype
) -> Linear:
    """The Linear called `name` from a converted part; CPU tensors stay mapped."""
    bias, scale = tensors.get(f"{name}.bias"), tensors.get(f"{name}.scale")
    weight = tensors[f"{name}.weight"].to(device)
    return Linear(
        weight,
        None if bias is None else bias.to(device),
        None if scale is None else scale.to(device, compute),
        0 if scale is None else packed_rows(weight, compute),
    )


def packed_rows(weight: torch.Tensor, compute: torch.dtype) -> int:
    """How many rows the packed kernel takes on this weight's device."""
    if weight.device.type == "cpu":
        return INT8_ROWS
    if weight.device not in _CUDA_ROWS:
        _CUDA_ROWS[weight.device] = choose_cuda_kernel(weight, compute)
    return _CUDA_ROWS[weight.device]


_CUDA_ROWS: dict[torch.device, int] = {}


def choose_cuda_kernel(weight: torch.Tensor, compute: torch.dtype) -> int:
    """INT8_ROWS when torch has the packed kernel for this card, it multiplies rightly, and is quicker than
    widening for one row of `weight`; else 0."""
    scale = torch.ones(weight.shape[0], dtype=compute, device=weight.device)
    x = torch.linspace(-1.0, 1.0, weight.shape[1], device=weight.device).to(compute)[None]
    packed = Linear(weight, None, scale, INT8_ROWS)
    wide = Linear(weight, None, scale, 0)
    try:
        found, wanted = packed(x).float(), wide(x).float()
        if not bool(((found - wanted).abs().max() <= 2e-2 * wanted.abs().max()).item()):
            return 0
        return INT8_ROWS if device_seconds(lambda: packed(x)) < device_seconds(lambda: wide(x)) else 0
    except (RuntimeError, AttributeError, NotImplementedError):
        return 0


def device_seconds(run: Callable[[], object], times: int = 20) -> float:
    """Seconds of one run on the card, warm."""
    for _ in range(3):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times
