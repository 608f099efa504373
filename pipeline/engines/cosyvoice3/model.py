"""One checkpoint made ready: converted if need be, mapped, its three parts built. Called by `engine` and the
bench."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from pipeline.engines.cosyvoice3.cache import Cache, Part
from pipeline.engines.cosyvoice3.cache import Config as PartConfig
from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, VocoderConfig
from pipeline.engines.cosyvoice3.convert import (
    DType,
    Item,
    flow_items,
    llm_items,
    modulation_items,
    text_items,
    vocoder_items,
)
from pipeline.engines.cosyvoice3.flow import Flow
from pipeline.engines.cosyvoice3.heap import drop_mapped
from pipeline.engines.cosyvoice3.llm import Llm
from pipeline.engines.cosyvoice3.official import OfficialModel, open_official
from pipeline.engines.cosyvoice3.plan import LoadOptions, sizes_of
from pipeline.engines.cosyvoice3.step import Steppers, cuda_capture
from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer
from pipeline.engines.cosyvoice3.vocoder import Noise, Vocoder
from pipeline.planning.memory import ModelSizes

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Model:
    """Everything needed to speak. `converted` names the parts that were not in the cache."""

    llm: Llm
    flow: Flow
    vocoder: Vocoder
    tokenizer: TextTokenizer
    options: LoadOptions
    converted: tuple[str, ...]
    steppers: Steppers

    @property
    def sizes(self) -> ModelSizes:
        """What the memory plan reckons with."""
        return sizes_of(self.llm.config, self.flow.config, self.vocoder.config, self.flow.steps)


def assemble(
    llm: Llm,
    flow: Flow,
    vocoder: Vocoder,
    tokenizer: TextTokenizer,
    options: LoadOptions,
    converted: tuple[str, ...] = (),
) -> Model:
    """The parts as one model. On a card the decoding step is captured as a graph."""
    capture = cuda_capture if torch.device(options.device).type == "cuda" else None
    return Model(llm, flow, vocoder, tokenizer, options, converted, Steppers(llm, capture))


def rebuild(kind: type[C], values: Mapping[str, Any]) -> C:
    """A configuration dataclass from its JSON form: lists become tuples again."""

    def frozen(value: Any) -> Any:
        return tuple(frozen(v) for v in value) if isinstance(value, list | tuple) else value

    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{k: frozen(v) for k, v in values.items() if k in names})


class _Opener:
    """The official files, opened only when a part has to be converted."""

    def __init__(self, folder: Path, reinforced: bool) -> None:
        self._folder, self._reinforced = folder, reinforced

    @cached_property
    def model(self) -> OfficialModel:
        return open_official(self._folder, reinforced=self._reinforced)


def load_model(folder: Path, cache_folder: Path, options: LoadOptions, noise: Noise | None = None) -> Model:
    """Map the converted parts of `folder`, converting what is missing. Raises EngineUnavailable."""
    cache, opener, device = (
        Cache(cache_folder, folder),
        _Opener(folder, options.reinforced),
        torch.device(options.device),
    )
    llm_file = "llm.rl.pt" if options.reinforced else "llm.pt"
    kind = "rl-" if options.reinforced else ""
    llm_sources = (llm_file, "cosyvoice3.yaml", "CosyVoice-BlankEN/config.json")
    converted: list[str] = []

    def part(
        name: str, sources: Sequence[str], make: Callable[[OfficialModel], tuple[PartConfig, Sequence[Item]]]
    ) -> Part:
        found, fresh = cache.get(name, sources, lambda: make(opener.model))
        if fresh:
            converted.append(name)
        return found

    text_dtype: DType = "fp32" if options.llm == "fp32" else "bf16"
    llm = part(
        f"llm-{kind}{options.llm}",
        llm_sources,
        lambda m: (m.config.llm, list(llm_items(m.config.llm, m.llm, options.llm, llm_file))),
    )
    table = part(
        f"text-{kind}{text_dtype}",
        llm_sources,
        lambda m: (m.config.llm, list(text_items(m.llm, text_dtype, llm_file))),
    )
    flow = part(
        f"flow-{options.flow}",
        ("flow.pt", "cosyvoice3.yaml"),
        lambda m: (m.config.flow, list(flow_items(m.config.flow, m.flow, options.flow))),
    )
    vocoder = part(
        "vocoder-fp32",
        ("hift.pt", "cosyvoice3.yaml"),
        lambda m: (m.config.vocoder, list(vocoder_items(m.config.vocoder, m.vocoder))),
    )
    llm_config = rebuild(LlmConfig, llm.config)
    built_flow = Flow(rebuild(FlowConfig, flow.config), flow.tensors, device)
    if options.steps != built_flow.steps:
        other = part(
            f"steps{options.steps}",
            ("flow.pt", "cosyvoice3.yaml"),
            lambda m: (m.config.flow, list(modulation_items(m.config.flow, m.flow, options.steps))),
        ).tensors
        built_flow.dit.use_modulation(other["modulation"], other["modulation_out"])
    compute = torch.bfloat16 if options.vocoder_bf16 else torch.float32
    made = assemble(
        Llm(llm_config, llm.tensors, table.tensors["weight"], device),
        built_flow,
        Vocoder(
            rebuild(VocoderConfig, vocoder.config), vocoder.tensors, device, noise=noise, compute=compute
        ),
        TextTokenizer(folder, llm_config.text_rows),
        options,
        tuple(converted),
    )
    for read_once in (llm, vocoder) if device.type == "cpu" else (llm, table, flow, vocoder):
        drop_mapped(read_once.path)
    return made
