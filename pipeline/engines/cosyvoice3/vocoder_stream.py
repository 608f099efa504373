"""The vocoder on windows: mel frames go in, samples come out, work grows linearly and memory not at all.

A window starts `left_context` frames early and what those spoil is dropped, so the samples are those of one
pass over everything. Carried from window to window: the running phase (one number for each harmonic), some
mel frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from pipeline.engines.cosyvoice3.config import VocoderConfig
from pipeline.engines.cosyvoice3.schema import source_stride
from pipeline.engines.cosyvoice3.vocoder import Vocoder

WINDOW_FRAMES = 150
"""3 s of new audio at a time: one chunk stays in the caches, the overlap costs a fifth."""


def left_context(c: VocoderConfig) -> int:
    """Frames to the left that a sample may depend on, decoder and source path added up (an upper bound)."""

    def reach(kernel: int, dilations: tuple[int, ...]) -> int:
        return sum((kernel - 1) * (d + 1) for d in dilations)

    frames, rate = 0.0, 1
    for i, up in enumerate(c.rates):
        rate *= up
        residual = max(reach(k, d) for k, d in zip(c.res_kernels, c.res_dilations, strict=True))
        source = reach(c.source_kernels[i], c.source_dilations[i]) + 2
        frames += (residual + max(c.kernels[i], source)) / rate
        frames += source_stride(c, i) * c.istft_hop / c.hop
    return math.ceil(frames) + 3  # the output convolution, both STFTs and the repeated first sample


class VocoderStream:
    """One utterance. `push` mel frames in order, the last time with `final`."""

    def __init__(self, vocoder: Vocoder, window: int = WINDOW_FRAMES) -> None:
        c = vocoder.config
        self.vocoder, self.window = vocoder, window
        self._context = max(left_context(c), vocoder.f0.left)
        self._ahead = c.f0_right + c.pre_right + 1
        self._base = 0  # absolute number of the first frame that is kept
        self._mel = torch.empty(0, c.mel)
        self._f0 = torch.empty(0, dtype=torch.float64)
        self._cycles = torch.empty(0, c.harmonics, dtype=torch.float64)
        self._carried = torch.zeros(c.harmonics, dtype=torch.float64)
        self._out = 0  # frames given out
        self._final = False

    @torch.inference_mode()
    def push(self, mel: torch.Tensor, *, final: bool = False) -> Iterator[torch.Tensor]:
        """float32 samples on the CPU, in pieces of at most `window` frames. mel [n, bands], n may be 0."""
        if self._final:
            raise ValueError("the utterance is over")
        self._final = final
        self._mel = torch.cat([self._mel, mel.float().cpu()])
        self._extend_pitch(final)
        total = self._base + self._mel.shape[0]
        end = total if final else max(total - self._ahead, self._out)
        while self._out < end:
            stop = min(self._out + self.window, end)
            piece = self._render(stop, total, final)
            self._out = stop
            self._forget()
            yield piece

    def _extend_pitch(self, final: bool) -> None:
        """The pitch of all frames that are there, a window at a time: its float64 would else be most of what
        a long segment costs (150 MB for 24 s)."""
        right = self.vocoder.config.f0_right
        while True:
            known, total = self._f0.shape[0], self._mel.shape[0]
            stop = min(known + self.window + right, total)
            last = final and stop == total
            begin = max(known - self.vocoder.f0.left, 0)
            if known == total or not (last or stop - known > right):
                return
            fresh = self.vocoder.f0(self._mel[begin:stop], final=last)[known - begin :]
            carried = self._cycles[-1] if known else self._carried
            self._cycles = torch.cat([self._cycles, self.vocoder.cycles(fresh, carried)])
            self._f0 = torch.cat([self._f0, fresh])

    def _render(self, stop: int, total: int, final: bool) -> torch.Tensor:
        """Samples of the frames from `_out` to `stop`."""
        c = self.vocoder.config
        begin = max(self._out - self._context, self._base)
        last = final and stop + c.pre_right + 1 >= total
        end = total if last else stop + c.pre_right + 1
        inside = slice(begin - self._base, end - self._base)
        source = self.vocoder.source(self._f0[inside], self._cycles[inside], begin)
        samples = self.vocoder.decode(self._mel[inside], source, final=last)
        return samples[(self._out - begin) * c.hop : (stop - begin) * c.hop].cpu()

    def _forget(self) -> None:
        """Drop frames that no later window looks at."""
        drop = max(self._out - self._context - self._base, 0)
        if drop:
            self._carried = self._cycles[drop - 1]
            self._mel, self._f0, self._cycles = self._mel[drop:], self._f0[drop:], self._cycles[drop:]
            self._base += drop
