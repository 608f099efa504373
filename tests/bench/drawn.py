"""A full-size CosyVoice 3 whose weights are drawn where they are used, without a checkpoint on disk.

The converters say which tensors there are, fed with tensors that have shapes and no memory; each is then
drawn on the device, in our layout and dtype. What it costs is what a real one costs; what it says is noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import torch

from pipeline.engines.cosyvoice3.config import ModelConfig
from pipeline.engines.cosyvoice3.convert import Item, flow_items, llm_items, text_items, vocoder_items
from pipeline.engines.cosyvoice3.flow import Flow
from pipeline.engines.cosyvoice3.llm import Llm
from pipeline.engines.cosyvoice3.model import Model, assemble
from pipeline.engines.cosyvoice3.plan import LoadOptions
from pipeline.engines.cosyvoice3.random_weights import FULL_SIZE
from pipeline.engines.cosyvoice3.schema import expected_flow, expected_llm, expected_vocoder
from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer
from pipeline.engines.cosyvoice3.vocoder import Vocoder

SPREAD = 0.02
INT8_DEVIATION = 73.0
"""Of uniform whole numbers from -127 to 127."""

TEXT_ROWS_DRAWN = 4096
"""The text table repeats after so many rows; nobody reads it whole."""


TINY = ModelConfig(
    llm=dataclasses.replace(
        FULL_SIZE.llm, hidden=64, layers=2, heads=4, head_dim=16, intermediate=128, text_rows=1280
    ),
    flow=dataclasses.replace(
        FULL_SIZE.flow, lookahead_channels=64, dim=64, depth=2, heads=2, head_dim=32, ff=128
    ),
    vocoder=dataclasses.replace(FULL_SIZE.vocoder, base=32, f0_channels=32),
)
"""The sizes of the parity kit, whose tokenizer is used."""


def shapes_only(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Tensors of `shapes` without memory; the small time network, which is computed at once, has zeros."""
    return {
        key: torch.zeros(shape) if "time_embed" in key else torch.empty(shape, device="meta")
        for key, shape in shapes.items()
    }


def draw(item: Item, device: torch.device) -> torch.Tensor:
    """One tensor that keeps the signal finite: norms and Snake near 1, weights of the usual spread."""
    name, shape = item.name, item.shape
    if item.dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    if name.endswith(".scale"):
        return torch.full(shape, SPREAD / INT8_DEVIATION, device=device)
    if name.rpartition(".")[2] in ("norm", "norm1", "norm2", "alpha"):
        return torch.ones(shape, dtype=item.dtype, device=device)
    if name.startswith("f0_predictor."):
        device = torch.device("cpu")  # where it is computed
    noise = torch.randn(shape, device=device)
    if name == "modulation":
        noise = noise.mul_(0.1)
        noise[:, :, (1, 4)] += 1.0
        return noise
    if name == "modulation_out":
        noise = noise.mul_(0.1)
        noise[:, 0] += 1.0
        return noise
    if name.endswith("bias"):
        spread = 0.01
    elif len(shape) == 3:
        spread = 0.7 / math.sqrt(shape[1] * shape[2])
    else:
        spread = SPREAD
    return noise.mul_(spread).to(item.dtype)


def drawn_part(items: Iterable[Item], device: torch.device) -> dict[str, torch.Tensor]:
    """All tensors of a part."""
    return {item.name: draw(item, device) for item in items}


def drawn_model(config: ModelConfig, options: LoadOptions, tokenizer_folder: Path, seed: int = 0) -> Model:
    """The three parts on `options.device`. The tokenizer's ids must lie within the text table."""
    torch.manual_seed(seed)
    device = torch.device(options.device)
    llm_source = shapes_only(expected_llm(config.llm))
    flow_source = shapes_only(expected_flow(config.flow))
    table = next(iter(text_items(llm_source, "fp32" if options.llm == "fp32" else "bf16")))
    rows = min(TEXT_ROWS_DRAWN, table.shape[0])
    few = torch.randn(rows, table.shape[1]).mul_(SPREAD).to(table.dtype)
    text = few.repeat(-(-table.shape[0] // rows), 1)[: table.shape[0]]
    return assemble(
        Llm(config.llm, drawn_part(llm_items(config.llm, llm_source, options.llm), device), text, device),
        Flow(config.flow, drawn_part(flow_items(config.flow, flow_source, options.flow), device), device),
        Vocoder(
            config.vocoder,
            drawn_part(vocoder_items(config.vocoder, shapes_only(expected_vocoder(config.vocoder))), device),
            device,
            compute=torch.bfloat16 if options.vocoder_bf16 else torch.float32,
        ),
        TextTokenizer(tokenizer_folder, config.llm.text_rows),
        options,
    )
