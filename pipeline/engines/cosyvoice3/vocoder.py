"""HiFT: log-mel to 24 kHz samples, weight norm folded, F0 in float64 on the CPU.

`Vocoder.decode` is one pass over a stretch of frames; where the stretch does not start at frame 0 the caller
gives the phase carried so far and drops what the missing left context spoils. `vocoder_stream` does that.
Noise is a uniform table in upstream, drawn once; ours is drawn by blocks from the block's number, so any
sample can be had at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import torch
from torch.nn import functional as F

from pipeline.engines.cosyvoice3.config import VocoderConfig
from pipeline.engines.cosyvoice3.official import Tensors
from pipeline.engines.cosyvoice3.schema import source_stride

Noise: TypeAlias = Callable[[int, int], torch.Tensor]
"""(first sample, count) -> uniform [0,1) float32 [count, harmonics]."""

FRAMES_ROUND = 16
"""On a CPU the last window of an utterance is rounded up to a multiple of this: oneDNN keeps what it prepared
for each shape, and a window has 80 convolutions."""

HEAD_SLOPE = 0.01
MAX_MAGNITUDE = 100.0


def block_noise(harmonics: int, block: int = 24_000, seed: int = 0x5EED) -> Noise:
    """Uniform noise indexed by absolute sample: block b comes from the CPU generator seeded with seed + b."""

    def rows(first: int, count: int) -> torch.Tensor:
        parts, at = [], first
        while at < first + count:
            number, inside = divmod(at, block)
            generator = torch.Generator().manual_seed(seed + number)
            take = min(block - inside, first + count - at)
            parts.append(torch.rand(block, harmonics, generator=generator)[inside : inside + take])
            at += take
        return torch.cat(parts) if parts else torch.empty(0, harmonics)

    return rows


@dataclass(frozen=True, slots=True)
class Conv:
    """A causal convolution over the last dimension: zeros on the left.

    Weights [C', C, k], or [C', C, 1, k] in channels-last for bf16: that layout is what AMX convolutions read
    without reordering (5 ms against 18 for 64 channels and 24,000 samples).
    """

    weight: torch.Tensor
    bias: torch.Tensor
    dilation: int = 1
    stride: int = 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[1, C, (1,) T] -> [1, C', (1,) T / stride], causal."""
        size = (self.weight.shape[-1] - 1) * self.dilation
        if self.weight.dim() == 3:
            x = F.pad(x, (size if self.stride == 1 else self.stride - 1, 0))
            return F.conv1d(x, self.weight, self.bias, self.stride, dilation=self.dilation)
        if self.stride > 1:
            x = F.pad(x, (self.stride - 1, 0))
            return F.conv2d(x, self.weight, self.bias, (1, self.stride))
        # padded on both sides by the kernel, cut on the right: in this layout the cut is free, a pad is a
        # copy
        y = F.conv2d(x, self.weight, self.bias, 1, (0, size), (1, self.dilation))
        return y[..., : x.shape[-1]]


@dataclass(frozen=True, slots=True)
class Residual:
    """Snake, dilated conv, snake, conv; added."""

    alpha1: torch.Tensor
    inverse1: torch.Tensor
    conv1: Conv
    alpha2: torch.Tensor
    inverse2: torch.Tensor
    conv2: Conv

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(snake(x, self.alpha1, self.inverse1))
        return x + self.conv2(snake(y, self.alpha2, self.inverse2))


def snake(x: torch.Tensor, alpha: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """x + sin^2(alpha x) / alpha, with alpha and its inverse broadcast over the channels."""
    s = (x * alpha).sin_()
    return torch.addcmul(x, s.mul_(s), inverse)


class F0Net:
    """Pitch in Hz for each frame, float64 on the CPU: the phase sum would carry any error on."""

    def __init__(self, config: VocoderConfig, part: Tensors) -> None:
        self._right = config.f0_right
        self._convs = [
            tuple(part[f"f0_predictor.condnet.{2 * i}.{n}"].double() for n in ("weight", "bias")) for i in
            range(5)
        ]  # fmt: skip
        self._head = tuple(part[f"f0_predictor.classifier.{n}"].double() for n in ("weight", "bias"))

    @property
    def left(self) -> int:
        """Frames of left context that a frame depends on."""
        return sum(int(w.shape[2]) - 1 for w, _ in self._convs[1:])

    def __call__(self, mel: torch.Tensor, *, final: bool) -> torch.Tensor:
        """[T, mel] -> float64 [T] (final) or [T - 3] (the last frames are look-ahead)."""
        x = mel.double().cpu().t()[None]
        if final:
            x = F.pad(x, (0, self._right))
        for i, (weight, bias) in enumerate(self._convs):
            x = F.elu(F.conv1d(x if i == 0 else F.pad(x, (weight.shape[2] - 1, 0)), weight, bias))
        weight, bias = self._head
        return F.linear(x[0].t(), weight, bias)[:, 0].abs()


class Vocoder:
    """The vocoder, ready to run. `compute` bf16 runs the residual stacks in bf16 (a measured mode); default
    fp32."""

    def __init__(
        self,
        config: VocoderConfig,
        part: Tensors,
        device: torch.device,
        *,
        noise: Noise | None = None,
        compute: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.device, self.compute = config, device, compute
        self.noise = noise or block_noise(config.harmonics)
        self.f0 = F0Net(config, part)
        self._part = part
        self._source = tuple(part[f"m_source.l_linear.{n}"].to(device) for n in ("weight", "bias"))
        exact = torch.float32
        self._pre = self._conv("conv_pre", exact)
        self._post = self._conv("conv_post", exact)
        self._ups = [self._conv(f"ups.{i}", compute) for i in range(len(config.rates))]
        self._downs = [
            self._conv(f"source_downs.{i}", compute, stride=source_stride(config, i))
            for i in range(len(config.rates))
        ]
        self._source_stacks = [
            self._stack(f"source_resblocks.{i}", d) for i, d in enumerate(config.source_dilations)
        ]
        per = len(config.res_kernels)
        self._stacks = [
            [self._stack(f"resblocks.{i * per + j}", d) for j, d in enumerate(config.res_dilations)]
            for i in range(len(config.rates))
        ]
        self._window = torch.hann_window(config.istft_n, periodic=True, device=device)
        self._rounds = device.type == "cpu"
        del self._part

    def _conv(self, name: str, dtype: torch.dtype, dilation: int = 1, stride: int = 1) -> Conv:
        weight, bias = (self._part[f"{name}.{n}"].to(self.device, dtype) for n in ("weight", "bias"))
        if dtype == torch.bfloat16:
            weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        return Conv(weight, bias, dilation, stride)

    def _stack(self, name: str, dilations: tuple[int, ...]) -> list[Residual]:
        def alphas(n: int, j: int) -> tuple[torch.Tensor, torch.Tensor]:
            alpha = self._part[f"{name}.activations{n}.{j}.alpha"].to(self.device)
            alpha = alpha[:, None] if self.compute == torch.float32 else alpha[:, None, None]
            return alpha.to(self.compute), (1.0 / (alpha + 1e-9)).to(self.compute)

        return [
            Residual(
                *alphas(1, j),
                self._conv(f"{name}.convs1.{j}", self.compute, dilation),
                *alphas(2, j),
                self._conv(f"{name}.convs2.{j}", self.compute),
            )
            for j, dilation in enumerate(dilations)
        ]

    def phase_steps(self, f0: torch.Tensor) -> torch.Tensor:
        """r [T, harmonics] float32: cycles a sample, modulo 1, of each harmonic."""
        number = torch.arange(1, self.config.harmonics + 1)
        return (f0.float()[:, None] * number / self.config.sample_rate) % 1.0

    def cycles(self, f0: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
        """Running sum of r, float64 [T, harmonics], going on from `carried` [harmonics] term by term."""
        steps = self.phase_steps(f0).double()
        return torch.cat([carried[None], steps]).cumsum(0)[1:]

    def source(self, f0: torch.Tensor, cycles: torch.Tensor, first_frame: int) -> torch.Tensor:
        """Excitation float32 [T * hop] of T frames from `first_frame` on, from their pitch and running
        phase."""
        c, frames = self.config, f0.shape[0]
        phase = cycles.float() * (2 * math.pi) * c.hop
        sine = c.sine_amplitude * phase.sin()
        voiced = (f0 > c.voiced_hz).float()[:, None]
        level = c.noise_sigma * voiced + (c.sine_amplitude / 3) * (1 - voiced)
        noise = self.noise(first_frame * c.hop, frames * c.hop).view(frames, c.hop, c.harmonics)
        excited = (voiced * sine)[:, None] + level[:, None] * noise
        weight, bias = self._source
        mixed = F.linear(excited.to(self.device).view(-1, c.harmonics), weight, bias)
        return mixed[:, 0].tanh()

    def source_spectrum(self, source: torch.Tensor) -> torch.Tensor:
        """STFT of the excitation [1, n_fft + 2, frames]: real rows, then imaginary rows."""
        c = self.config
        spectrum = torch.stft(
            source, c.istft_n, c.istft_hop, c.istft_n, self._window, center=True, return_complex=True
        )
        return torch.cat([spectrum.real, spectrum.imag])[None]

    def decode(self, mel: torch.Tensor, source: torch.Tensor, *, final: bool) -> torch.Tensor:
        """Samples float32 from mel [T, bands] and its excitation.

        `source` is T * hop long. Final: T * hop samples. Not final: the last `pre_right` frames are
        look-ahead only: (T - pre_right) * hop samples, of which the last hop still lacks the frames after it.
        """
        c = self.config
        x = mel.to(self.device, torch.float32).t()[None]
        more = -mel.shape[0] % FRAMES_ROUND if final and self._rounds else 0
        if final:
            x = F.pad(x, (0, c.pre_right + more))
        x = F.conv1d(x, self._pre.weight, self._pre.bias)
        spectrum = self.source_spectrum(source)
        wanted = spectrum.shape[2]
        if not final:
            spectrum = spectrum[:, :, : -(c.pre_right * c.hop // c.istft_hop)]
        if more:  # all that follows is causal: what comes behind changes nothing before it
            spectrum = F.pad(spectrum, (0, more * c.hop // c.istft_hop))
        x, spectrum = self._enter(x), self._enter(spectrum)
        for i, rate in enumerate(c.rates):
            x = F.leaky_relu(x, c.slope)
            x = self._ups[i](self._repeat(x, rate))
            if i == len(c.rates) - 1:
                x = torch.cat([x[..., 1:2], x], dim=-1)
            x = x + self._source_at(i, spectrum)
            x = reduce(torch.add, [self._run(k, x) for k in self._stacks[i]]) / len(self._stacks[i])
        x = x.float() if x.dim() == 3 else x[:, :, 0].float().contiguous()
        x = self._post(F.leaky_relu(x, HEAD_SLOPE))
        return self._to_samples(x[..., :wanted] if more else x)

    def _enter(self, x: torch.Tensor) -> torch.Tensor:
        """Into the residual stacks' dtype and layout."""
        if self.compute == torch.float32:
            return x
        return x[:, :, None].to(self.compute).contiguous(memory_format=torch.channels_last)

    def _repeat(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        """Each sample `rate` times, in the layout it has."""
        if x.dim() == 3:
            return x.repeat_interleave(rate, dim=2)
        rows = x[0, :, 0].t().repeat_interleave(rate, dim=0)
        return rows.t()[None, :, None]

    def _run(self, stack: list[Residual], x: torch.Tensor) -> torch.Tensor:
        for residual in stack:
            x = residual(x)
        return x

    def _source_at(self, stage: int, spectrum: torch.Tensor) -> torch.Tensor:
        y = self._downs[stage](spectrum)
        return self._run(self._source_stacks[stage], y)

    def _to_samples(self, x: torch.Tensor) -> torch.Tensor:
        c, bins = self.config, self.config.istft_n // 2 + 1
        magnitude = x[:, :bins].exp().clamp_max(MAX_MAGNITUDE)
        phase = x[:, bins:].sin()
        spectrum = torch.polar(magnitude, phase)[0]
        samples = torch.istft(spectrum, c.istft_n, c.istft_hop, c.istft_n, self._window, center=True)
        return samples.clamp(-c.limit, c.limit)

    @torch.inference_mode()
    def whole(self, mel: torch.Tensor, *, final: bool = True) -> torch.Tensor:
        """One pass over everything: the reference for the windowed form. [T, bands] -> float32 samples.

        Not final: (T - 8) * hop samples.
        """
        c = self.config
        f0 = self.f0(mel, final=final)
        source = self.source(f0, self.cycles(f0, torch.zeros(c.harmonics, dtype=torch.float64)), 0)
        samples = self.decode(mel if final else mel[: -c.f0_right], source, final=final)
        return samples if final else samples[: -c.hop]
