"""`cosyd admin profile explain`: the memory plan of the model in people's words. The arithmetic is in
`pipeline.planning.memory`, which the engine uses too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from daemon.cli.frame import text
from daemon.cli.hardware import Seen
from daemon.sample import RamReading
from pipeline.messages import size_text
from pipeline.planning.memory import Device, ModelSizes, Plan, budget, make_plan, wished
from pipeline.profile import Config

GIB = 1024**3
NOMINAL = {"gpu-4g": 4 * GIB, "gpu-6g": 6 * GIB, "gpu-12g": 12 * GIB}
"""What a class stands for, where no card is seen: for who asks before buying one."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A plan, and where it is for. `memory_from` says who told the memory that is reckoned with, `values` the
    configuration that the plan follows: value and layer of each key."""

    profile: str
    plan: Plan
    memory_from: str = ""
    values: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        return self.plan.choice.device

    def to_params(self) -> dict[str, Any]:
        """The JSON form."""
        choice, wish = self.plan.choice, self.plan.wish
        names = ("llm", "flow", "batch", "longest_s", "reference_s")
        return {
            "profile": self.profile,
            "device": self.device,
            "fits": self.plan.fits,
            "budget_bytes": self.plan.budget_bytes,
            "needs": self.plan.needs.to_params(),
            "chosen": {name: getattr(choice, name) for name in names},
            "wished": {name: getattr(wish, name) for name in names},
            "memory_from": self.memory_from,
            "values": {key: {"value": v, "origin": origin} for key, (v, origin) in self.values.items()},
        }


KEYS = ("profile", "gpu", "weights", "batch_segments", "longest_segment_s", "reference_audio_max_s")
"""What of the configuration decides about the plan."""


def explain(
    config: Config,
    seen: Seen,
    ram: RamReading | None,
    vram_bytes: int | None,
    fast_bf16: bool,
    origin: Mapping[str, str] = MappingProxyType({}),
) -> Explained:
    """The plan for this machine, or for a card of `vram_bytes`. A card is taken as empty: what holds its
    memory now is `cosyd status`'s business."""
    device: Device = "cuda" if config.gpu != "none" or vram_bytes is not None else "cpu"
    free: int | None
    total: int | None
    if device == "cuda":
        largest = max((card.total_bytes for card in seen.cards), default=NOMINAL.get(config.profile))
        free = total = vram_bytes if vram_bytes is not None else largest
        told = "NVML" if seen.cards else f"profile {config.profile}"
        told = "--vram" if vram_bytes is not None else told
    else:
        free, total = (ram.available_bytes, ram.total_bytes) if ram is not None else (None, None)
        told = "/proc/meminfo"
    wish = wished(config, device, fast_bf16)
    plan = make_plan(ModelSizes(), wish, budget(config, device, free, total))
    values = {key: (getattr(config, key), origin.get(key, "default")) for key in KEYS}
    return Explained(config.profile, plan, told, values)


def title(explained: Explained) -> str:
    """Which class, and on what."""
    place = text("plan_place_card" if explained.device == "cuda" else "plan_place_cpu")
    return text("plan_title", profile=explained.profile, place=place)


def rows(explained: Explained) -> Iterator[tuple[str, str]]:
    """Parts and their sizes, then the sum and what there is."""
    plan, found = explained.plan, explained.plan.needs
    choice = plan.choice

    def row(key: str, size: int, **params: Any) -> tuple[str, str]:
        return text(key, **params), size_text(size)

    yield row("plan_context_cuda" if explained.device == "cuda" else "plan_context_cpu", found.context)
    yield row("plan_llm", found.llm, dtype=choice.llm)
    yield row("plan_flow", found.flow, dtype=choice.flow)
    yield row("plan_vocoder", found.vocoder)
    yield row("plan_kv", found.kv, count=choice.batch)
    work = max(found.llm_work, found.flow_work, found.vocoder_work)
    yield row("plan_work", work, seconds=f"{choice.longest_s:g}")
    yield row("plan_workspace", found.workspace)
    yield row("plan_peak", found.peak)
    if plan.budget_bytes is not None:
        yield row("plan_free", plan.budget_bytes)


def origins(explained: Explained) -> Iterator[str]:
    """Where the numbers come from."""
    for key, (value, origin) in explained.values.items():
        shown = f"{value:g}" if isinstance(value, float) else value
        yield text("plan_from", name=key, value=shown, origin=origin)
    yield text("plan_memory_from", origin=explained.memory_from)


def verdict(explained: Explained) -> str:
    """Whether it fits, and what was chosen instead when not all of it does."""
    plan = explained.plan
    if plan.budget_bytes is None:
        return text("plan_unknown")
    if not plan.fits:
        return text("plan_too_large", short=plan.needs.peak - plan.budget_bytes)
    if not plan.reduced:
        return text("plan_fits")
    wish, choice = plan.wish, plan.choice
    changes = [
        f"{old} -> {new}"
        for old, new in (
            (wish.llm, choice.llm),
            (f"{wish.batch} x", f"{choice.batch} x"),
            (f"{wish.longest_s:g} s", f"{choice.longest_s:g} s"),
        )
        if old != new
    ]
    return text("plan_leaner", detail=", ".join(changes))
