"""The flow's network: a diffusion transformer with tabulated modulation, run on whole batches.

A batch holds, for every segment, its conditional and its unconditional row. The modulation of each time value
is a table, so the time network is not here. Rotary turns the first head alone: upstream applies it before the
split into heads, with a width of one head (ARCHITECTURE, section 2). Called by `flow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from pipeline.engines.cosyvoice3.config import FlowConfig
from pipeline.engines.cosyvoice3.linear import Linear, take_linear
from pipeline.engines.cosyvoice3.official import Tensors

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Block:
    """One transformer block's weights."""

    qkv: Linear
    out: Linear
    ff1: Linear
    ff2: Linear


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which keys a frame may see. All None: every key of its row, with no mask made.

    `lengths` are frames of each row in a padded batch; `block` is the streaming mask's block in frames.
    """

    lengths: tuple[int, ...] | None = None
    block: int | None = None

    def mask(self, frames: int, device: torch.device) -> torch.Tensor | None:
        """A boolean mask [rows or 1, 1, frames or 1, frames] that broadcasts, or None when all is allowed."""
        position = torch.arange(frames, device=device)
        mask = None
        if self.block is not None and frames > self.block:
            mask = (position[None, :] < ((position // self.block + 1) * self.block)[:, None])[None, None]
        if self.lengths is not None and any(n != frames for n in self.lengths):
            limit = torch.tensor(self.lengths, device=device)
            valid = (position[None, :] < limit[:, None])[:, None, None]
            mask = valid if mask is None else mask & valid
        return mask


def rotary(frames: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [frames, width/2], float32; adjacent channels pair."""
    frequency = 1.0 / 10000.0 ** (torch.arange(0, width, 2, device=device).float() / width)
    angle = torch.arange(frames, device=device).float()[:, None] * frequency[None, :]
    return angle.cos(), angle.sin()


class Dit:
    """x, condition -> velocity. Weights in the compute dtype; input, output and residual stream in
    float32."""

    def __init__(self, config: FlowConfig, part: Tensors, device: torch.device) -> None:
        self.config, self.device = config, device
        self.compute = part["blocks.0.qkv.bias"].dtype
        self._input = take_linear(part, "input", device, torch.float32)
        self._convs = [(part[f"conv{i}.weight"].to(device), part[f"conv{i}.bias"].to(device)) for i in (1, 2)]
        self._blocks = [
            Block(*(take_linear(part, f"blocks.{i}.{n}", device, self.compute) for n in ("qkv", "out", "ff1",
            "ff2"))) for i in range(config.depth)
        ]  # fmt: skip
        self._out = take_linear(part, "out", device, torch.float32)
        self.modulation = part["modulation"].to(device)
        self.modulation_out = part["modulation_out"].to(device)

    def use_modulation(self, modulation: torch.Tensor, modulation_out: torch.Tensor) -> None:
        """Replace the tables, for another number of steps."""
        self.modulation, self.modulation_out = modulation.to(self.device), modulation_out.to(self.device)

    def condition(self, mu: torch.Tensor, cond: torch.Tensor, speaker: torch.Tensor) -> torch.Tensor:
        """The part of the input projection that no step changes: mu, cond [R,T,mel], speaker [R,mel] ->
        [R,T,dim]."""
        m = self.config.mel
        weight = self._input.weight
        fixed = F.linear(cond, weight[:, m : 2 * m], self._input.bias)
        fixed = fixed + F.linear(mu, weight[:, 2 * m : 3 * m])
        return fixed + F.linear(speaker, weight[:, 3 * m :])[:, None]

    def embed(self, x: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
        """Input projection and causal conv position embedding: x [S,T,mel], fixed [nS,T,dim] -> [nS,T,dim]
        float32; n is 2 for both guidance branches, 1 for one of them."""
        moving = F.linear(x, self._input.weight[:, : self.config.mel])
        y = (fixed.view(-1, *moving.shape) + moving).view(fixed.shape)
        h = y.transpose(1, 2).to(self.compute)
        for weight, bias in self._convs:
            h = F.mish(
                F.conv1d(
                    F.pad(h, (self.config.conv_kernel - 1, 0)), weight, bias, groups=self.config.conv_groups
                )
            )
        return y + h.transpose(1, 2)

    def velocity(
        self, x: torch.Tensor, fixed: torch.Tensor, step: int, tables: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Raw network output [nS, T, mel] at `step`; `tables` come from `prepare`."""
        h = self.embed(x, fixed)
        cos, sin, *mask = tables
        for i, block in enumerate(self._blocks):
            h = self._block(block, h, self.modulation[step, i], cos, sin, mask[0] if mask else None)
        scale, shift = self.modulation_out[step]
        return self._out(F.layer_norm(h, (self.config.dim,), scale, shift, NORM_EPS))

    def prepare(self, frames: int, plan: AttentionPlan) -> list[torch.Tensor]:
        """Rotary tables and, where one is needed, the mask; shared by all blocks and steps."""
        cos, sin = rotary(frames, self.config.head_dim, self.device)
        mask = plan.mask(frames, self.device)
        return [cos[None], sin[None]] if mask is None else [cos[None], sin[None], mask]

    def _block(
        self,
        block: Block,
        h: torch.Tensor,
        modulation: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        c = self.config
        rows, frames, _ = h.shape
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation
        # layer_norm's own weight and bias take the modulation: one pass over h instead of three
        a = F.layer_norm(h, (c.dim,), scale1, shift1, NORM_EPS).to(self.compute)
        qkv = block.qkv(a).view(rows, frames, 3, c.heads, c.head_dim)
        for part in (0, 1):  # the first head of q and k, in place
            head = qkv[:, :, part, 0].float()
            even, odd = head[..., 0::2], head[..., 1::2]
            turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
            qkv[:, :, part, 0] = turned.flatten(-2).to(self.compute)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        del a, qkv, q, k, v  # a quarter of what this block would have alive at its peak
        h = torch.addcmul(h, block.out(attended.transpose(1, 2).reshape(rows, frames, c.dim)).float(), gate1)
        del attended
        b = F.layer_norm(h, (c.dim,), scale2, shift2, NORM_EPS).to(self.compute)
        return torch.addcmul(h, block.ff2(F.gelu(block.ff1(b), approximate="tanh")).float(), gate2)
