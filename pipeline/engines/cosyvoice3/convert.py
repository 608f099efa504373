"""Official tensors into our layout: fused, folded, tabulated, in the dtype wanted. One tensor at a time.

Each part is a list of `Item`: name, shape, dtype and a thunk that makes the tensor, so that the writer in
`cache` never holds more than one of them. Layout:

llm      layers.N.{qkv,o,gate_up,down}.weight (int8: and .scale), qkv.bias, norm1, norm2;
         norm, head, speech_embedding
text     weight: the text table, gathered on the CPU
flow     embedding, speaker, lookahead{1,2}, input, conv{1,2}, blocks.N.{qkv,out,ff1,ff2}, out;
         modulation, modulation_out
vocoder  every conv with its weight norm folded; f0_predictor.* in float64
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, VocoderConfig
from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.official import Tensors
from pipeline.engines.cosyvoice3.schema import BODY, DIRECTION, GAIN, NET, expected_vocoder

DType = Literal["fp32", "bf16", "int8"]
FLOAT: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16}
"""What is not quantised is kept in this."""

LAYOUT = 1
"""Raise it when the layout changes: older caches are then made anew."""

DEFAULT_STEPS = 10


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor to be written. `make` returns it with exactly `shape` and `dtype`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], torch.Tensor]


def finite(file: str, key: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or EngineUnavailable(not_finite)."""
    if not bool(torch.isfinite(tensor).all()):
        raise problem("not_finite", file, key)
    return tensor


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 with one scale for each output row: [N,K] -> int8 [N,K], float32 [N]."""
    weight = weight.float()
    scale = (weight.abs().amax(dim=1) / 127.0).clamp_min(1e-12)
    return (weight / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def _cast(file: str, key: str, source: Tensors, dtype: torch.dtype) -> Item:
    tensor = source[key]
    return Item(key, tuple(tensor.shape), dtype, lambda: finite(file, key, tensor).to(dtype).contiguous())


def _renamed(item: Item, name: str) -> Item:
    return Item(name, item.shape, item.dtype, item.make)


def _stacked(file: str, name: str, keys: list[str], source: Tensors, dtype: torch.dtype) -> Item:
    shape = (sum(source[k].shape[0] for k in keys), *source[keys[0]].shape[1:])
    return Item(name, shape, dtype, lambda: torch.cat([finite(file, k, source[k]).to(dtype) for k in keys]))


def _linear(file: str, name: str, keys: list[str], source: Tensors, dtype: DType) -> Iterator[Item]:
    """A weight (rows of `keys` stacked) as float, or as int8 with its scales."""
    if dtype != "int8":
        yield _stacked(file, f"{name}.weight", keys, source, FLOAT[dtype])
        return
    whole = _stacked(file, name, keys, source, torch.float32)
    yield Item(f"{name}.weight", whole.shape, torch.int8, lambda: quantize_rows(whole.make())[0])
    yield Item(f"{name}.scale", whole.shape[:1], torch.float32, lambda: quantize_rows(whole.make())[1])


def llm_items(c: LlmConfig, source: Tensors, dtype: DType, file: str = "llm.pt") -> Iterator[Item]:
    """The device part of the language model: no text table, no lm_head."""
    compute, exact = FLOAT[dtype], torch.float32
    yield _renamed(_cast(file, "speech_embedding.weight", source, compute), "speech_embedding")
    for i in range(c.layers):
        at, to = f"{BODY}layers.{i}.", f"layers.{i}."
        projections = [f"{at}self_attn.{n}_proj" for n in "qkv"]
        yield from _linear(file, to + "qkv", [p + ".weight" for p in projections], source, dtype)
        yield _stacked(file, to + "qkv.bias", [p + ".bias" for p in projections], source, compute)
        yield from _linear(file, to + "o", [at + "self_attn.o_proj.weight"], source, dtype)
        gates = [f"{at}mlp.{n}_proj.weight" for n in ("gate", "up")]
        yield from _linear(file, to + "gate_up", gates, source, dtype)
        yield from _linear(file, to + "down", [at + "mlp.down_proj.weight"], source, dtype)
        yield _renamed(_cast(file, at + "input_layernorm.weight", source, exact), to + "norm1")
        yield _renamed(_cast(file, at + "post_attention_layernorm.weight", source, exact), to + "norm2")
    yield _renamed(_cast(file, BODY + "norm.weight", source, exact), "norm")
    yield from _linear(file, "head", ["llm_decoder.weight"], source, dtype)


def text_items(source: Tensors, dtype: DType, file: str = "llm.pt") -> Iterator[Item]:
    """The text table alone; it stays on the CPU and on disk."""
    yield _renamed(_cast(file, BODY + "embed_tokens.weight", source, FLOAT[dtype]), "weight")


def time_grid(steps: int) -> list[float]:
    """tau_0 .. tau_steps = 1 - cos(pi/2 k/steps), as upstream's float32 gives them."""
    ramp = torch.linspace(0, 1, steps + 1)
    return [float(v) for v in 1 - torch.cos(ramp * 0.5 * math.pi)]


def evaluation_times(steps: int) -> list[float]:
    """The t at which the network is evaluated: the grid, summed in float32 as upstream's Euler loop does."""
    grid = torch.tensor(time_grid(steps))
    t, out = grid[0], []
    step = grid[1] - grid[0]
    for k in range(1, steps + 1):
        out.append(float(t))
        t = t + step
        if k < steps:
            step = grid[k + 1] - t
    return out


def time_embedding(source: Tensors, times: list[float], width: int) -> torch.Tensor:
    """c for each t, float32 [steps, D]: sinusoid of 1000 t, Linear, SiLU, Linear."""
    half = width // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angle = 1000.0 * torch.tensor(times)[:, None] * frequency[None, :]
    c = torch.cat([angle.sin(), angle.cos()], dim=-1)
    at = NET + "time_embed.time_mlp."
    c = torch.nn.functional.linear(c, source[at + "0.weight"].float(), source[at + "0.bias"].float())
    c = torch.nn.functional.silu(c)
    return torch.nn.functional.linear(c, source[at + "2.weight"].float(), source[at + "2.bias"].float())


def modulation_items(c: FlowConfig, source: Tensors, steps: int) -> Iterator[Item]:
    """The adaptive norms' vectors for the `steps` time values, float32.

    modulation [steps, depth, 6, D] in the order shift1, 1+scale1, gate1, shift2, 1+scale2, gate2;
    modulation_out [steps, 2, D] as 1+scale, shift. They replace 142 M parameters.
    """
    activated = torch.nn.functional.silu(time_embedding(source, evaluation_times(steps), c.time_dim))

    def table(key: str, parts: int, plus_one: tuple[int, ...]) -> torch.Tensor:
        weight = finite("flow.pt", key + ".weight", source[key + ".weight"]).float()
        rows = torch.nn.functional.linear(activated, weight, source[key + ".bias"].float())
        rows = rows.view(steps, parts, c.dim)
        rows[:, list(plus_one)] += 1.0
        return finite("flow.pt", key, rows)

    def blocks() -> torch.Tensor:
        keys = [f"{NET}transformer_blocks.{i}.attn_norm.linear" for i in range(c.depth)]
        return torch.stack([table(k, 6, (1, 4)) for k in keys], dim=1)

    yield Item("modulation", (steps, c.depth, 6, c.dim), torch.float32, blocks)
    yield Item(
        "modulation_out", (steps, 2, c.dim), torch.float32, lambda: table(NET + "norm_out.linear", 2, (0,))
    )


def flow_items(c: FlowConfig, source: Tensors, dtype: DType, steps: int = DEFAULT_STEPS) -> Iterator[Item]:
    """The flow without its time network. What touches the mel itself stays float32: it is small."""
    file, compute, exact = "flow.pt", FLOAT[dtype], torch.float32

    def pair(key: str, name: str, kind: torch.dtype) -> Iterator[Item]:
        yield _renamed(_cast(file, key + ".weight", source, kind), name + ".weight")
        yield _renamed(_cast(file, key + ".bias", source, kind), name + ".bias")

    yield _renamed(_cast(file, "input_embedding.weight", source, exact), "embedding")
    yield from pair("spk_embed_affine_layer", "speaker", exact)
    for i in (1, 2):
        yield from pair(f"pre_lookahead_layer.conv{i}", f"lookahead{i}", exact)
    yield from pair(NET + "input_embed.proj", "input", exact)
    for i in (1, 2):
        yield from pair(f"{NET}input_embed.conv_pos_embed.conv{i}.0", f"conv{i}", compute)
    for i in range(c.depth):
        at, to = f"{NET}transformer_blocks.{i}.", f"blocks.{i}."
        names = [f"{at}attn.to_{n}" for n in "qkv"]
        yield from _linear(file, to + "qkv", [n + ".weight" for n in names], source, dtype)
        yield _stacked(file, to + "qkv.bias", [n + ".bias" for n in names], source, compute)
        for key, name in (("attn.to_out.0", "out"), ("ff.ff.0.0", "ff1"), ("ff.ff.2", "ff2")):
            yield from _linear(file, to + name, [f"{at}{key}.weight"], source, dtype)
            yield _renamed(_cast(file, f"{at}{key}.bias", source, compute), f"{to}{name}.bias")
    yield from pair(NET + "proj_out", "out", exact)
    yield from modulation_items(c, source, steps)


def fold(source: Tensors, key: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """g v / ||v||, the norm over everything but the output channel."""
    direction = finite("hift.pt", key + DIRECTION, source[key + DIRECTION]).to(dtype)
    return torch._weight_norm(direction, source[key + GAIN].to(dtype), 0)


def vocoder_items(c: VocoderConfig, source: Tensors) -> Iterator[Item]:
    """The vocoder with weight norm folded: the pitch net in float64, as it is computed, the rest in
    float32."""
    for key in sorted(expected_vocoder(c)):
        dtype = torch.float64 if key.startswith("f0_predictor.") else torch.float32
        if key.endswith(GAIN):
            continue
        if key.endswith(DIRECTION):
            yield _folded(source, key.removesuffix(DIRECTION), dtype)
        else:
            yield _cast("hift.pt", key, source, dtype)


def _folded(source: Tensors, stem: str, dtype: torch.dtype) -> Item:
    shape = tuple(source[stem + DIRECTION].shape)
    return Item(f"{stem}.weight", shape, dtype, lambda: fold(source, stem, dtype))
