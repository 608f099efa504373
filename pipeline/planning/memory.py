"""How much memory CosyVoice 3 needs, by dtype, prompt and text length, and what to choose where less is
there.

Pure arithmetic on sizes; the engine uses it when it loads, `cosyd admin profile explain` to show it, the
bench to compare it with what was measured. It counts what the runtime in `pipeline/engines/cosyvoice3` keeps
and what one stage has alive at its worst; the stages run one after another, so the largest counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.profile import Config

DType = Literal["int8", "bf16", "fp32"]
Device = Literal["cpu", "cuda"]

MIB = 1024**2
WIDTH: dict[str, int] = {"int8": 1, "bf16": 2, "fp32": 4}
COMPUTE: dict[str, int] = {"int8": 2, "bf16": 2, "fp32": 4}
"""Bytes of what is not quantised, and of an activation."""

TOKENS_A_SECOND = 25
IDS_A_SECOND = 4.5
"""Text: a Han character is about one id, and 4.5 of them are a second of speech."""

TOKENS_FOR_AN_ID = 20
"""The hard limit of the model: the KV cache is made for it."""

PROMPT_IDS = 120
"""Transcript and instruction of a voice, with room."""

SPOKEN_SPREAD = 1.25
"""A segment may take so much longer than estimated."""

HOST_CPU_BYTES = 330 * MIB
"""Python, torch's CPU build and the libraries beside it, before any weight (a CUDA build: 600 MiB)."""

CUDA_CONTEXT_BYTES = 450 * MIB
"""Driver context and the kernels that are loaded as they are first used."""

CUDA_WORKSPACE_BYTES = 160 * MIB
"""cuBLAS and cuDNN scratch, the LLM step's graph, and what the allocator rounds up."""

CPU_WORKSPACE_BYTES = 96 * MIB
"""Tokenizer, oneDNN's kernels, libraries as they are first used (measured)."""

VOCODER_BYTES: dict[str, int] = {"cpu": 144 * MIB, "cuda": 96 * MIB}
"""One window of three seconds; on a CPU measured, on a card from the sizes of its tensors."""

HEAP_FACTOR: dict[str, float] = {"cpu": 1.9, "cuda": 1.25}
"""What an allocator takes for tensors of many sizes that come and go; on a CPU measured."""

SHORTEST_SEGMENT_S = 8.0

VOICED_TOGETHER = 4
"""Largest batch of the flow: by then a card's units are full."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes that memory follows from; the defaults are Fun-CosyVoice3-0.5B as published."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 4864
    text_rows: int = 151_936
    speech_rows: int = 6761
    dim: int = 1024
    depth: int = 22
    ff: int = 2048
    conv_kernel: int = 31
    conv_groups: int = 16
    mel: int = 80
    codes: int = 6561
    lookahead_channels: int = 1024
    ratio: int = 2
    steps: int = 10
    vocoder_parameters: int = 17_510_000
    f0_parameters: int = 3_310_000

    @property
    def llm_matrix_parameters(self) -> int:
        """What int8 applies to: the projections and the speech head."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim
        return self.hidden * (self.layers * (attention + 3 * self.intermediate) + self.speech_rows)

    @property
    def flow_matrix_parameters(self) -> int:
        return self.depth * self.dim * (4 * self.dim + 2 * self.ff)

    @property
    def kv_values(self) -> int:
        """Keys and values of one position."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run. `batch` segments are decoded together; both lengths are seconds of speech. `steps` of
    the flow and `reinforced` (which official language model) are the person's and never changed."""

    device: Device = "cpu"
    llm: DType = "int8"
    flow: DType = "bf16"
    batch: int = 1
    longest_s: float = 25.0
    reference_s: float = 10.0
    vocoder_bf16: bool = False
    steps: int = 10
    reinforced: bool = False

    @property
    def text_ids(self) -> int:
        return round(IDS_A_SECOND * self.longest_s)

    @property
    def prompt_tokens(self) -> int:
        return round(TOKENS_A_SECOND * self.reference_s)

    @property
    def voiced_together(self) -> int:
        """Segments in one batch of the flow: on a CPU it is bound by arithmetic, and one is enough."""
        return min(self.batch, VOICED_TOGETHER) if self.device == "cuda" else 1


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes by part. On a card the text table and the pitch net stay in RAM and are not in it."""

    llm: int
    flow: int
    vocoder: int
    kv: int
    llm_work: int
    flow_work: int
    vocoder_work: int
    workspace: int
    context: int

    @property
    def weights(self) -> int:
        return self.llm + self.flow + self.vocoder

    @property
    def steady(self) -> int:
        """Loaded, between two texts."""
        return self.weights + self.context

    @property
    def peak(self) -> int:
        """At the worst moment of the longest segment."""
        stages = (self.kv + self.llm_work, self.kv + self.flow_work, self.kv + self.vocoder_work)
        return self.steady + self.workspace + max(stages)

    @property
    def peak_without_context(self) -> int:
        return self.peak - self.context

    def to_params(self) -> dict[str, int]:
        """The parts and sums as JSON."""
        return {name: getattr(self, name) for name in (*self.__slots__, "weights", "steady", "peak")}


def llm_bytes(s: ModelSizes, dtype: DType) -> int:
    """Projections and head, their scales, biases, norms, and the table of speech tokens."""
    rows = (s.heads + 2 * s.kv_heads) * s.head_dim
    scales = 4 * (s.layers * (rows + 2 * s.hidden + 2 * s.intermediate) + s.speech_rows)
    small = s.layers * (rows * COMPUTE[dtype] + 2 * s.hidden * 4) + s.hidden * 4
    table = s.speech_rows * s.hidden * COMPUTE[dtype]
    return s.llm_matrix_parameters * WIDTH[dtype] + (scales if dtype == "int8" else 0) + small + table


def flow_bytes(s: ModelSizes, dtype: DType) -> int:
    """Blocks, the position convolutions, the tables of modulation and of noise, and what touches the mel."""
    convs = 2 * s.dim * (s.dim // s.conv_groups) * s.conv_kernel
    biases = s.depth * (5 * s.dim + s.ff)
    tables = 4 * s.steps * (6 * s.depth + 2) * s.dim
    noise = 4 * 15_000 * s.mel
    exact = 4 * (s.codes * s.mel + 4 * s.mel * s.dim + s.dim * s.mel + 7 * s.mel * s.lookahead_channels)
    return (
        s.flow_matrix_parameters * WIDTH[dtype] + (convs + biases) * COMPUTE[dtype] + tables + noise + exact
    )


def needs(s: ModelSizes, choice: Choice, context: int | None = None) -> Needs:
    """What `choice` takes. `context` is what is there before any weight, when that was measured."""
    on_card = choice.device == "cuda"
    compute = COMPUTE[choice.llm]
    prefill = 2 + PROMPT_IDS + choice.text_ids + choice.prompt_tokens
    capacity = prefill + TOKENS_FOR_AN_ID * choice.text_ids
    spoken = round(SPOKEN_SPREAD * TOKENS_A_SECOND * choice.longest_s)
    frames = s.ratio * (choice.prompt_tokens + spoken)
    # gate, up, their product and the projections of one position; int8 may be widened once for a prefill
    widened = 2 * s.intermediate * s.hidden * 2 if choice.llm == "int8" else 0
    llm_work = prefill * (6 * s.intermediate * compute + 12 * s.hidden * 4) + widened
    # both branches; per channel: the residual stream and its successor, the unchanging input, a float32 copy
    # of each product, and in the compute dtype q, k, v, attention and the wide layer
    wide = COMPUTE[choice.flow]
    channel = s.dim * (4 * 4 + 6 * wide) + 2 * s.ff * wide
    flow_work = round(HEAP_FACTOR[choice.device] * 2 * choice.voiced_together * frames * channel)
    vocoder_work = VOCODER_BYTES[choice.device]
    vocoder = s.vocoder_parameters * (2 if choice.vocoder_bf16 else 4)
    host = 0 if on_card else s.f0_parameters * 8
    if context is None:
        context = CUDA_CONTEXT_BYTES if on_card else HOST_CPU_BYTES
    return Needs(
        llm=llm_bytes(s, choice.llm),
        flow=flow_bytes(replace(s, steps=choice.steps), choice.flow),
        vocoder=vocoder + host,
        kv=choice.batch * capacity * s.kv_values * compute,
        llm_work=llm_work,  # rows are prefilled one after another
        flow_work=flow_work,
        vocoder_work=vocoder_work,
        workspace=CUDA_WORKSPACE_BYTES if on_card else CPU_WORKSPACE_BYTES,
        context=context,
    )


def wished(config: Config, device: Device, fast_bf16: bool) -> Choice:
    """What the profile asks for, before anyone looks at what is free.

    int8 is for the language model only. A CPU without bf16 units computes bf16 slower than fp32: there the
    flow stays in fp32. Never fp16: users report that it overflows.
    """
    sixteen = device == "cuda" or fast_bf16
    exact = config.weights == "fp32"
    small: DType = "bf16" if config.weights == "bf16" and sixteen else "int8"
    return Choice(
        device=device,
        llm="fp32" if exact else small,
        flow="bf16" if sixteen and not exact else "fp32",
        batch=config.batch_segments,
        longest_s=config.longest_segment_s,
        reference_s=config.reference_audio_max_s,
        vocoder_bf16=device == "cpu" and fast_bf16 and not exact,
        steps=config.cosyvoice.flow_steps,
        reinforced=config.cosyvoice.reinforced,
    )


def leaner(choice: Choice) -> Iterator[Choice]:
    """`choice` and what could be run instead, each leaner than the one before: fewer segments at once cost
    only time, then smaller weights, then shorter segments, which are heard as more pauses."""
    dtypes: list[DType] = ["int8"] if choice.llm == "int8" else [choice.llm, "int8"]
    for dtype in dtypes:
        batch = choice.batch
        while True:
            yield replace(choice, llm=dtype, batch=batch)
            if batch == 1:
                break
            batch //= 2
    seconds = choice.longest_s
    while (seconds := seconds * 0.6) >= SHORTEST_SEGMENT_S:
        yield replace(choice, llm="int8", batch=1, longest_s=round(seconds, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """What was chosen, what it takes, and whether that fits. `budget_bytes` None: it is not known how much is
    free, and the wish is taken as it is."""

    choice: Choice
    needs: Needs
    budget_bytes: int | None
    fits: bool
    wish: Choice

    @property
    def reduced(self) -> bool:
        """Whether less was chosen than was wished."""
        return self.choice != self.wish


def make_plan(s: ModelSizes, wish: Choice, budget_bytes: int | None, context: int | None = None) -> Plan:
    """The first choice whose peak fits the budget (context included); the leanest when none does."""
    last: Plan | None = None
    for choice in leaner(wish):
        found = needs(s, choice, context)
        fits = budget_bytes is None or found.peak <= budget_bytes
        last = Plan(choice, found, budget_bytes, fits, wish)
        if fits:
            break
    assert last is not None  # the wish itself is always tried
    return last


def budget(config: Config, device: Device, free_bytes: int | None, total_bytes: int | None) -> int | None:
    """What may be taken of `free_bytes`: the rest, the guard's LOW threshold, stays free. None: unknown."""
    if free_bytes is None or total_bytes is None:
        return None
    guard = config.guard.ram if device == "cpu" else config.guard.vram
    return max(free_bytes - guard.low_enter.bytes_of(total_bytes), 0)
