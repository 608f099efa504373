"""One checkpoint made ready: converted if need be, mapped, its three parts built. Called by `engine` and the
bench."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from pipeline.engines.base import EngineUnavailable
from pipeline.engines.cosyvoice3.cache import Cache, Part
from pipeline.engines.cosyvoice3.cache import Config as PartConfig
from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, VocoderConfig
from pipeline.engines.cosyvoice3.convert import (
    DEFAULT_STEPS,
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
from pipeline.engines.cosyvoice3.saved_voices import take_over
from pipeline.engines.cosyvoice3.step import Steppers, cuda_capture
from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer
from pipeline.engines.cosyvoice3.vocoder import Noise, Vocoder
from pipeline.planning.memory import ModelSizes

C = TypeVar("C")

log = logging.getLogger(__name__)


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


@contextlib.contextmanager
def suppressed_trouble() -> Iterator[None]:
    """Voices that cannot be taken over must not keep the model from speaking."""
    try:
        yield
    except EngineUnavailable as error:
        log.warning("spk2info.pt: %s", error.params.get("reason"))


class _Opener:
    """The official files, opened only when a part has to be converted."""

    def __init__(self, folder: Path, reinforced: bool) -> None:
        self._folder, self._reinforced = folder, reinforced

    @cached_property
    def model(self) -> OfficialModel:
        return open_official(self._folder, reinforced=self._reinforced)


def _made(plan: PartPlan, opener: _Opener) -> tuple[PartConfig, Sequence[Item]]:
    return plan.make(opener.model)


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A converted part: its name in the cache, the official files it comes from, and how it is made."""

    name: str
    sources: tuple[str, ...]
    make: Callable[[OfficialModel], tuple[PartConfig, Sequence[Item]]]


def part_plans(options: LoadOptions) -> dict[str, PartPlan]:
    """What is loaded for `options`: llm, text, flow, vocoder, and steps where they are not the usual ten."""
    llm_file = "llm.rl.pt" if options.reinforced else "llm.pt"
    kind = "rl-" if options.reinforced else ""
    llm_sources = (llm_file, "cosyvoice3.yaml", "CosyVoice-BlankEN/config.json")
    flow_sources = ("flow.pt", "cosyvoice3.yaml")
    text_dtype: DType = "fp32" if options.llm == "fp32" else "bf16"
    plans = {
        "llm": PartPlan(
            f"llm-{kind}{options.llm}",
            llm_sources,
            lambda m: (m.config.llm, list(llm_items(m.config.llm, m.llm, options.llm, llm_file))),
        ),
        "text": PartPlan(
            f"text-{kind}{text_dtype}",
            llm_sources,
            lambda m: (m.config.llm, list(text_items(m.llm, text_dtype, llm_file))),
        ),
        "flow": PartPlan(
            f"flow-{options.flow}",
            flow_sources,
            lambda m: (m.config.flow, list(flow_items(m.config.flow, m.flow, options.flow))),
        ),
        "vocoder": PartPlan(
            "vocoder-fp32",
            ("hift.pt", "cosyvoice3.yaml"),
            lambda m: (m.config.vocoder, list(vocoder_items(m.config.vocoder, m.vocoder))),
        ),
    }
    if options.steps != DEFAULT_STEPS:
        plans["steps"] = PartPlan(
            f"steps{options.steps}",
            flow_sources,
            lambda m: (m.config.flow, list(modulation_items(m.config.flow, m.flow, options.steps))),
        )
    return plans


def convert_parts(
    folder: Path,
    cache_folder: Path,
    options: LoadOptions,
    on_tensor: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[list[Path], list[str]]:
    """Make the cache without loading it: (its files, the parts that had to be made). `on_tensor` is told the
    part, the bytes of it that are made, and its size. Raises EngineUnavailable."""
    cache, opener = Cache(cache_folder, folder), _Opener(folder, options.reinforced)
    files: list[Path] = []
    made: list[str] = []
    for plan in part_plans(options).values():

        def make(plan: PartPlan = plan) -> tuple[PartConfig, Sequence[Item]]:
            config, items = plan.make(opener.model)
            return config, told(plan.name, items, on_tensor)

        part, fresh = cache.get(plan.name, plan.sources, make)
        files.append(part.path)
        if fresh:
            made.append(plan.name)
    return files, made


def told(name: str, items: Sequence[Item], on_tensor: Callable[[str, int, int], None]) -> list[Item]:
    """The same items, each telling when it is made."""
    sizes = [math.prod(i.shape) * torch.empty(0, dtype=i.dtype).element_size() for i in items]
    total, done = sum(sizes), 0
    out = []
    for item, size in zip(items, sizes, strict=True):
        done += size

        def make(item: Item = item, done: int = done) -> torch.Tensor:
            tensor = item.make()
            on_tensor(name, done, total)
            return tensor

        out.append(dataclasses.replace(item, make=make))
    return out


def load_model(folder: Path, cache_folder: Path, options: LoadOptions, noise: Noise | None = None) -> Model:
    """Map the converted parts of `folder`, converting what is missing. Raises EngineUnavailable."""
    cache, opener, device = (
        Cache(cache_folder, folder),
        _Opener(folder, options.reinforced),
        torch.device(options.device),
    )
    converted: list[str] = []
    parts: dict[str, Part] = {}
    for role, plan in part_plans(options).items():
        parts[role], fresh = cache.get(plan.name, plan.sources, partial(_made, plan, opener))
        if fresh:
            converted.append(plan.name)
    llm, table, flow, vocoder = (parts[role] for role in ("llm", "text", "flow", "vocoder"))
    llm_config = rebuild(LlmConfig, llm.config)
    built_flow = Flow(rebuild(FlowConfig, flow.config), flow.tensors, device)
    if (steps := parts.get("steps")) is not None:
        built_flow.dit.use_modulation(steps.tensors["modulation"], steps.tensors["modulation_out"])
    tokenizer = TextTokenizer(folder, llm_config.text_rows)
    with suppressed_trouble():
        take_over(folder, cache_folder, tokenizer)
    compute = torch.bfloat16 if options.vocoder_bf16 else torch.float32
    made = assemble(
        Llm(llm_config, llm.tensors, table.tensors["weight"], device),
        built_flow,
        Vocoder(
            rebuild(VocoderConfig, vocoder.config), vocoder.tensors, device, noise=noise, compute=compute
        ),
        tokenizer,
        options,
        tuple(converted),
    )
    for read_once in (llm, vocoder) if device.type == "cpu" else (llm, table, flow, vocoder):
        drop_mapped(read_once.path)
    return made
