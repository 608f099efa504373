"""The vocoder against upstream's numbers; windows against one pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.cosyvoice3.conftest import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.engines.cosyvoice3.vocoder import block_noise  # noqa: E402
from pipeline.engines.cosyvoice3.vocoder_stream import VocoderStream, left_context  # noqa: E402


def test_pitch_is_exact(make_vocoder: Any, golden: Any) -> None:
    g, vocoder = golden("hift.npz"), make_vocoder()
    mel = torch.from_numpy(g["mel"][0]).t()
    np.testing.assert_allclose(vocoder.f0(mel, final=True), g["f0_final_f64"][0], atol=1e-10)
    np.testing.assert_array_equal(vocoder.f0(mel, final=True).float(), g["f0_final"][0])
    np.testing.assert_allclose(vocoder.f0(mel[:30], final=False), g["f0_stream_first30"][0], atol=1e-10)


def test_source_and_its_spectrum(make_vocoder: Any, formula_noise: Any, golden: Any) -> None:
    g, vocoder = golden("hift.npz"), make_vocoder(formula_noise)
    f0 = vocoder.f0(torch.from_numpy(g["mel"][0]).t(), final=True)
    with torch.inference_mode():
        source = vocoder.source(f0, vocoder.cycles(f0, torch.zeros(9, dtype=torch.float64)), 0)
        np.testing.assert_allclose(source, g["source_final"][0, 0], atol=1e-5)
        spectrum = vocoder.source_spectrum(source)[0, :, :400]
        np.testing.assert_allclose(spectrum, g["source_stft_final"][0], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "frames", "final"),
    [("wav_final", 60, True), ("wav_stream_first30", 30, False), ("wav_stream_60", 60, False)],
)
def test_waveforms(
    make_vocoder: Any, formula_noise: Any, golden: Any, name: str, frames: int, final: bool
) -> None:
    g = golden("hift.npz")
    mel = torch.from_numpy(g["mel"][0]).t()[:frames]
    np.testing.assert_allclose(make_vocoder(formula_noise).whole(mel, final=final), g[name][0], atol=1e-4)


def test_the_waveform_with_upstreams_own_noise(make_vocoder: Any, golden: Any) -> None:
    g = golden("hift_default_noise.npz")
    table = torch.from_numpy(g["sine_noise"][0])
    vocoder = make_vocoder(lambda first, count: table[first : first + count])
    np.testing.assert_allclose(vocoder.whole(torch.from_numpy(g["mel"][0]).t()), g["wav"][0], atol=1e-4)


@pytest.mark.parametrize("window", [40, 150])
@pytest.mark.parametrize(
    "cuts", [[360], [50, 150, 360], [*range(1, 10), 349, 360], [100, 100, 359, 360], [359, 360]]
)
def test_windows_give_the_samples_of_one_pass(
    make_vocoder: Any, golden: Any, cuts: list[int], window: int
) -> None:
    mel = torch.from_numpy(golden("hift.npz")["mel"][0]).t().repeat(6, 1)
    mel = mel + 0.1 * torch.randn(mel.shape, generator=torch.Generator().manual_seed(1))
    vocoder = make_vocoder()
    stream, out = VocoderStream(vocoder, window), []
    for begin, end in pairwise([0, *cuts]):
        out += list(stream.push(mel[begin:end], final=end == cuts[-1]))
    joined, whole = torch.cat(out), vocoder.whole(mel)
    assert joined.shape == whole.shape == (360 * 480,)
    assert (joined - whole).abs().max() < 1e-4  # float32 convolutions of another length: 1.3e-5 measured
    assert all(len(piece) <= window * 480 for piece in out)


def test_streaming_holds_back_eight_frames_and_no_more(make_vocoder: Any, golden: Any) -> None:
    mel = torch.from_numpy(golden("hift.npz")["mel"][0]).t()
    stream = VocoderStream(make_vocoder())
    assert sum(len(p) for p in stream.push(mel)) == (60 - 8) * 480
    assert sum(len(p) for p in stream.push(mel[:0], final=True)) == 8 * 480


def test_a_long_utterance_keeps_a_bounded_window(make_vocoder: Any) -> None:
    vocoder = make_vocoder()
    stream = VocoderStream(vocoder, 50)
    mel = torch.randn(50, 80, generator=torch.Generator().manual_seed(2))
    for _ in range(40):
        for _ in stream.push(mel):
            pass
        assert len(stream._mel) <= 50 + 8 + left_context(vocoder.config)


def test_a_very_short_utterance(make_vocoder: Any) -> None:
    vocoder = make_vocoder()
    mel = torch.randn(2, 80, generator=torch.Generator().manual_seed(3))
    samples = torch.cat(list(VocoderStream(vocoder).push(mel, final=True)))
    assert samples.shape == (960,) and bool(samples.isfinite().all())


def test_noise_is_uniform_and_the_same_wherever_it_is_read() -> None:
    noise = block_noise(9, block=1000)
    whole = noise(0, 5000)
    assert torch.equal(noise(990, 1020), whole[990:2010])
    assert abs(float(whole.mean()) - 0.5) < 0.01 and float(whole.min()) >= 0 and float(whole.max()) < 1


def test_the_bf16_vocoder_stays_close_to_fp32(make_vocoder: Any, golden: Any) -> None:
    """From one mel pitch and phase stay exact, so samples can be compared. 20 dB here: 8 bits of mantissa
    through weights drawn wide on purpose. At full size with weights of the usual spread it is 42 dB
    (tests/bench)."""
    mel = torch.from_numpy(golden("e2e.npz")["mel"][0]).t()
    exact, rough = (make_vocoder(compute=d).whole(mel) for d in (torch.float32, torch.bfloat16))
    streamed = torch.cat(list(VocoderStream(make_vocoder(compute=torch.bfloat16), 50).push(mel, final=True)))
    for found in (rough, streamed):
        noise = (exact - found).square().mean()
        assert 10 * torch.log10(exact.square().mean() / noise) > 17
