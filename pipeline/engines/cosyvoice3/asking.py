"""What the engine is asked, in the model's terms: a voice's arrays as checked tensors, segments as requests.

Called by `engine` only, once torch is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pipeline.codes import CosydError
from pipeline.engines.base import Options, Segment, VoiceFeatures
from pipeline.engines.cosyvoice3.prompts import effective_mode, llm_request
from pipeline.engines.cosyvoice3.synthesis import Voice
from pipeline.engines.cosyvoice3.text import tidy

if TYPE_CHECKING:
    from pipeline.engines.cosyvoice3.decode import LlmRequest
    from pipeline.engines.cosyvoice3.model import Model


def ready_voice(model: Model, features: VoiceFeatures) -> Voice:
    """The voice's arrays as tensors. Raises CosydError(bad_value) for what is no voice of this model."""
    config = model.flow.config
    try:
        tokens, mel, speaker = (features.arrays[n] for n in ("speech_tokens", "prompt_mel", "speaker"))
    except KeyError as error:
        raise CosydError("bad_value", field="voice", reason="unknown_key", allowed=str(error)) from error
    ids = tuple(int(t) for t in np.asarray(tokens).reshape(-1))
    right = mel.shape == (config.ratio * len(ids), config.mel) and speaker.size == config.speaker
    if not right or not (np.isfinite(mel).all() and np.isfinite(speaker).all()):
        raise CosydError("bad_value", field="voice", reason="out_of_range", value="features")
    return Voice(ids, torch.from_numpy(np.array(mel, np.float32)), torch.from_numpy(np.array(speaker)))


def segment_request(
    model: Model, segment: Segment, features: VoiceFeatures, voice: Voice, options: Options
) -> LlmRequest:
    """A segment as the language model is asked for it; each has a seed of its own."""
    return llm_request(
        model.tokenizer,
        effective_mode(options.mode, features.transcript, options.instruct),
        tidy(segment.text),
        voice.tokens,
        transcript=features.transcript,
        instruct=options.instruct,
        seed=options.seed + segment.idx,
    )
