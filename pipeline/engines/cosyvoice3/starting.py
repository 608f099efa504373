"""Before an engine speaks: what fits into the memory that is free, and a first sentence that must sound.

Called by `engine` at load. torch is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.engines.base import StopFlag
from pipeline.engines.cosyvoice3.plan import Effort
from pipeline.engines.cosyvoice3.recovery import memory_errors
from pipeline.planning.free import ram_free
from pipeline.planning.memory import Device, ModelSizes, Plan, budget, make_plan, wished
from pipeline.planning.processor import fast_bf16
from pipeline.profile import Config

if TYPE_CHECKING:
    from pipeline.engines.cosyvoice3.model import Model

SELF_TEST_TOKENS, SELF_TEST_STREAMED = 12, 40
SILENT_PEAK = 1e-4


def rss_bytes() -> int | None:
    """Resident memory of this process; None where /proc does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class Watched:
    """A stop flag that tells of being looked at, which is at each token and each step of the flow."""

    def __init__(self, stop: StopFlag, on_look: Callable[[], None]) -> None:
        self._stop, self._on_look = stop, on_look

    def is_set(self) -> bool:
        self._on_look()
        return self._stop.is_set()


def plan_here(profile: Config, notice: Callable[[str], None]) -> Plan:
    """What fits into the memory that is free now. When nothing does, the leanest is tried all the same:
    the plan has a margin, and an out-of-memory is caught."""
    import torch

    device: Device = "cuda" if profile.gpu != "none" and torch.cuda.is_available() else "cpu"
    free = torch.cuda.mem_get_info() if device == "cuda" else ram_free()
    room = budget(profile, device, *(free or (None, None)))
    plan = make_plan(ModelSizes(), wished(profile, device, fast_bf16()), room, context=0)
    if plan.reduced:
        notice(f"memory: {plan.wish} -> {plan.choice}")
    if not plan.fits:
        notice(f"memory: {plan.needs.peak} bytes needed, {room} free")
    return plan


def self_test(model: Model, effort: Effort, stop: StopFlag) -> str:
    """Speak a few tokens: "" when the result is finite and not silent, else what is wrong. On a card it
    is streamed, as the first listener's will be, so that kernels and graph are there by then.

    Raises OutOfMemory.
    """
    import torch

    from pipeline.engines.cosyvoice3.prompts import llm_request
    from pipeline.engines.cosyvoice3.sampling import GreedySampler
    from pipeline.engines.cosyvoice3.synthesis import Voice, speak_many, speak_streaming

    config, on_card = model.flow.config, model.options.device != "cpu"
    voice = Voice((), torch.zeros(0, config.mel), torch.ones(config.speaker))
    request = llm_request(
        model.tokenizer,
        "cross_lingual",
        "你好，hello.",
        (),
        max_tokens=SELF_TEST_STREAMED if on_card else SELF_TEST_TOKENS,
    )
    sampler = GreedySampler(model.llm.config.codes)
    with memory_errors():
        if on_card:
            pieces = list(speak_streaming(model, voice, request, sampler, stop, effort=effort))
        else:
            spoken = speak_many(model, voice, [request], sampler, stop, effort=effort)
            pieces = [samples for _, samples in spoken]
    if stop.is_set():
        return ""
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if not np.isfinite(samples).all():
        return "not finite"
    return "" if len(samples) and float(np.abs(samples).max()) > SILENT_PEAK else "silent"
