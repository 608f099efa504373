"""From the memory plan to how this runtime is loaded. Importable without torch.

The arithmetic is `pipeline.planning.memory`, which the CLI shows; here are the sizes of a checkpoint that was
opened, and what to do when memory ran out all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pipeline.engines.cosyvoice3.config import FlowConfig, LlmConfig, VocoderConfig
from pipeline.engines.cosyvoice3.schema import GAIN, expected_vocoder
from pipeline.planning.memory import Choice, DType, ModelSizes

F0 = "f0_predictor."
SAFER: dict[DType, DType] = {"int8": "bf16", "bf16": "fp32"}


def sizes_of(llm: LlmConfig, flow: FlowConfig, vocoder: VocoderConfig, steps: int) -> ModelSizes:
    """What memory follows from, of one checkpoint."""
    counts = {key: math.prod(shape) for key, shape in expected_vocoder(vocoder).items()}
    f0 = sum(n for key, n in counts.items() if key.startswith(F0) and not key.endswith(GAIN))
    return ModelSizes(
        hidden=llm.hidden,
        layers=llm.layers,
        heads=llm.heads,
        kv_heads=llm.kv_heads,
        head_dim=llm.head_dim,
        intermediate=llm.intermediate,
        text_rows=llm.text_rows,
        speech_rows=llm.speech_rows,
        dim=flow.dim,
        depth=flow.depth,
        ff=flow.ff,
        conv_kernel=flow.conv_kernel,
        conv_groups=flow.conv_groups,
        mel=flow.mel,
        codes=flow.codes,
        lookahead_channels=flow.lookahead_channels,
        ratio=flow.ratio,
        steps=steps,
        vocoder_parameters=sum(n for key, n in counts.items() if not key.endswith(GAIN)) - f0,
        f0_parameters=f0,
    )


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load. `vocoder_bf16` runs the vocoder's convolutions in bf16, a named mode."""

    llm: DType = "fp32"
    flow: DType = "fp32"
    device: str = "cpu"
    steps: int = 10
    vocoder_bf16: bool = False
    reinforced: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done at once. The samples are the same to rounding; only memory and time differ.

    `voiced_together` segments in one batch of the flow, both branches of its guidance `branches_together`,
    `window` frames of the vocoder, `graph` for the decoding step on a card.
    """

    decoded_together: int = 64
    voiced_together: int = 1
    branches_together: bool = True
    window: int = 150
    graph: bool = True

    def leaner(self) -> Effort | None:
        """What to try after an out-of-memory; None when there is nothing leaner."""
        if self.decoded_together > 1 or self.voiced_together > 1 or self.graph:
            return replace(self, decoded_together=1, voiced_together=1, graph=False)
        if self.branches_together or self.window > 50:
            return replace(self, branches_together=False, window=50)
        return None


def options_of(choice: Choice) -> LoadOptions:
    """How the parts are loaded for what the memory plan chose."""
    return LoadOptions(
        choice.llm, choice.flow, choice.device, choice.steps, choice.vocoder_bf16, choice.reinforced
    )


def effort_of(choice: Choice) -> Effort:
    """How much is done at once for what the memory plan chose."""
    return Effort(choice.batch, choice.voiced_together, graph=choice.device == "cuda")


def safer_options(options: LoadOptions) -> LoadOptions | None:
    """The next safer dtype after a failed self-test; None when everything is fp32 already."""
    if (options.llm, options.flow, options.vocoder_bf16) == ("fp32", "fp32", False):
        return None
    llm, flow = (SAFER.get(d, "fp32") for d in (options.llm, options.flow))
    return LoadOptions(llm, flow, options.device, options.steps, reinforced=options.reinforced)


def smaller_options(options: LoadOptions) -> LoadOptions | None:
    """What to load after an out-of-memory; None when the weights are as small as they get."""
    if options.llm == "int8":
        return None
    return replace(options, llm="int8", flow="bf16" if options.device == "cuda" else options.flow)
