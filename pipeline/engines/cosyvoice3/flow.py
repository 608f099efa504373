"""Speech tokens to log-mel by flow matching: conditions, Euler steps, guidance, batches of segments.

The start noise is one fixed tensor, so a frame has the same noise in every streaming chunk. Calls `dit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from pipeline.codes import CosydError
from pipeline.engines.base import StopFlag
from pipeline.engines.cosyvoice3.config import FlowConfig
from pipeline.engines.cosyvoice3.convert import time_grid
from pipeline.engines.cosyvoice3.dit import AttentionPlan, Dit
from pipeline.engines.cosyvoice3.official import Tensors

NOISE_FRAMES = 15_000
"""300 s at 50 frames a second, prompt included: the model's hard limit."""


FRAMES_ROUND, TOKENS_ROUND = 32, 16
"""On a CPU lengths are rounded up to these: oneDNN keeps what it prepared for each shape, 16 MB for each new
length of a segment."""


@dataclass(frozen=True, slots=True)
class FlowRequest:
    """One segment. `tokens` are the new ones; `prompt_mel` float32 [ratio * prompt tokens, mel]; `speaker`
    [192].

    Not `final`: the last `lookahead` tokens only serve as context. `streaming` uses the block mask.
    """

    tokens: tuple[int, ...]
    speaker: torch.Tensor
    prompt_tokens: tuple[int, ...] = ()
    prompt_mel: torch.Tensor | None = None
    final: bool = True
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the network is given for one segment, float32: mu and cond [T, mel], speaker [mel]."""

    mu: torch.Tensor
    cond: torch.Tensor
    speaker: torch.Tensor
    prompt_frames: int


def start_noise(mel: int) -> torch.Tensor:
    """Upstream's fixed noise: randn(1, mel, 15000) of the CPU generator with seed 0, as [15000, mel]."""
    drawn = torch.randn(1, mel, NOISE_FRAMES, generator=torch.Generator().manual_seed(0))
    return drawn[0].t().contiguous()


class Flow:
    """The flow, ready to run."""

    def __init__(self, config: FlowConfig, part: Tensors, device: torch.device) -> None:
        self.config, self.device = config, device
        small = ("embedding", "speaker.weight", "speaker.bias")
        self._embedding, self._speaker_weight, self._speaker_bias = (part[n].to(device) for n in small)
        self._lookahead = [
            (part[f"lookahead{i}.weight"].to(device), part[f"lookahead{i}.bias"].to(device)) for i in (1, 2)
        ]
        self.dit = Dit(config, part, device)
        self.noise = start_noise(config.mel).to(device)
        self._rounds = device.type == "cpu"

    @property
    def steps(self) -> int:
        """Euler steps the modulation table was made for."""
        return int(self.dit.modulation.shape[0])

    def check(self, request: FlowRequest) -> None:
        """Raises CosydError(bad_value | text_too_long | bad_take) for what the network cannot take."""
        c = self.config
        ids = request.tokens + request.prompt_tokens
        if not request.tokens:
            raise CosydError("bad_take", reason="no speech tokens")
        if max(ids) >= c.codes:
            raise CosydError("bad_value", field="voice", reason="out_of_range", value="speech token id")
        prompt_frames = 0 if request.prompt_mel is None else request.prompt_mel.shape[0]
        if prompt_frames != c.ratio * len(request.prompt_tokens):
            raise CosydError("bad_value", field="voice", reason="out_of_range", value="prompt length")
        if c.ratio * len(ids) > NOISE_FRAMES:
            raise CosydError("text_too_long", length=len(ids) // 25, limit=NOISE_FRAMES // c.frame_rate)

    def conditions(self, request: FlowRequest) -> Conditions:
        """mu, cond and speaker of one segment (steps 1 to 5 of ARCHITECTURE, section 2)."""
        self.check(request)
        c = self.config
        speaker = F.normalize(request.speaker.to(self.device, torch.float32).reshape(1, -1), dim=1, eps=1e-12)
        speaker = F.linear(speaker, self._speaker_weight, self._speaker_bias)[0]
        ids = torch.tensor(request.prompt_tokens + request.tokens, device=self.device).clamp_min(0)
        x = self._embedding[ids].t()[None]
        kept = x if request.final else x[:, :, : -c.lookahead]
        count = kept.shape[2]
        more = (
            -x.shape[2] % TOKENS_ROUND if self._rounds else 0
        )  # zeros on the right change nothing before them
        padded = F.pad(x, (0, more + (c.lookahead if request.final else 0)))
        (w1, b1), (w2, b2) = self._lookahead
        u = F.leaky_relu(F.conv1d(padded, w1, b1), 0.01)
        v = kept + F.conv1d(F.pad(u, (w2.shape[2] - 1, 0)), w2, b2)[:, :, :count]
        mu = v[0].t().repeat_interleave(c.ratio, dim=0)
        cond = torch.zeros_like(mu)
        prompt_frames = c.ratio * len(request.prompt_tokens)
        if request.prompt_mel is not None:
            cond[:prompt_frames] = request.prompt_mel.to(self.device, torch.float32)
        return Conditions(mu, cond, speaker, prompt_frames)

    @torch.inference_mode()
    def mel(
        self, request: FlowRequest, stop: StopFlag | None = None, *, together: bool = True
    ) -> torch.Tensor | None:
        """Log-mel [T, mel] after the prompt, float32 on the device; None when stopped between steps."""
        done = self.mel_many([request], stop, together=together)
        return None if done is None else done[0]

    @torch.inference_mode()
    def mel_many(
        self, requests: Sequence[FlowRequest], stop: StopFlag | None = None, *, together: bool = True
    ) -> list[torch.Tensor] | None:
        """Several segments in one padded batch, with both guidance branches: 2 S rows, or S rows twice when
        not `together`, for half the memory. All stream or none does."""
        if len({r.streaming for r in requests}) != 1:
            raise ValueError("a batch streams as a whole or not at all")
        conditions = [self.conditions(r) for r in requests]
        lengths = [int(k.mu.shape[0]) for k in conditions]
        frames = max(lengths)
        if self._rounds:
            frames = min(-(-frames // FRAMES_ROUND) * FRAMES_ROUND, NOISE_FRAMES)
        plan = AttentionPlan(
            lengths=tuple(lengths * (2 if together else 1)),
            block=self.config.block if requests[0].streaming else None,
        )
        fixed = self._fixed(conditions, frames)
        x = self.noise[None, :frames].repeat(len(requests), 1, 1)
        grid, tables = torch.tensor(time_grid(self.steps)), self.dit.prepare(frames, plan)
        t = grid[0]
        for k in range(self.steps):
            if stop is not None and stop.is_set():
                return None
            step = grid[k + 1] - t
            if together:
                velocity = self.dit.velocity(x, fixed, k, tables)
            else:
                velocity = torch.cat([self.dit.velocity(x, half, k, tables) for half in fixed.chunk(2)])
            guided = self._guide(velocity)
            x = x + float(step) * guided
            t = t + step
        return [x[i, k.prompt_frames : n] for i, (k, n) in enumerate(zip(conditions, lengths, strict=True))]

    def _fixed(self, conditions: Sequence[Conditions], frames: int) -> torch.Tensor:
        """The unchanging input of both branches [2S, T, dim]; the second half is unconditional."""
        mu = torch.stack([F.pad(k.mu, (0, 0, 0, frames - k.mu.shape[0])) for k in conditions])
        cond = torch.stack([F.pad(k.cond, (0, 0, 0, frames - k.cond.shape[0])) for k in conditions])
        speaker = torch.stack([k.speaker for k in conditions])
        zero = torch.zeros_like(mu)
        given = self.dit.condition(mu, cond, speaker)
        free = self.dit.condition(zero, zero, torch.zeros_like(speaker))
        return torch.cat([given, free])

    def _guide(self, velocity: torch.Tensor) -> torch.Tensor:
        """Classifier-free guidance over the two halves of the batch."""
        given, free = velocity.chunk(2)
        return (1.0 + self.config.guidance) * given - self.config.guidance * free
