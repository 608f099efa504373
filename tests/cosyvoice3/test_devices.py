"""Every tensor is on the device it must be on, seen without a card: torch's fake tensors know devices and
shapes, and refuse a mixture as a card would. What reads values back (sampling's choice, lengths) is not in
reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH, NOT_ASKED

torch = pytest.importorskip("torch", reason=NO_TORCH)
if torch.version.cuda is None:
    pytest.skip(NOT_ASKED + "this build of torch knows no CUDA", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from pipeline.engines.cosyvoice3 import convert, linear  # noqa: E402
from pipeline.engines.cosyvoice3.dit import AttentionPlan  # noqa: E402
from pipeline.engines.cosyvoice3.flow import FlowRequest  # noqa: E402
from pipeline.engines.cosyvoice3.model import Model  # noqa: E402
from pipeline.engines.cosyvoice3.plan import LoadOptions  # noqa: E402
from pipeline.engines.cosyvoice3.sampling import RasParams, RasSampler  # noqa: E402
from tests.bench.drawn import TINY, drawn_model  # noqa: E402

CARD = torch.device("cuda", 0)


@pytest.fixture(params=["bf16", "int8"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model on a card that is not there; the mode is on while the test runs."""
    grid, times = convert.time_grid(10), convert.evaluation_times(10)  # the only values that are looked at
    monkeypatch.setattr(convert, "time_grid", lambda steps: grid)
    monkeypatch.setattr(convert, "evaluation_times", lambda steps: times)
    monkeypatch.setattr(linear, "choose_cuda_kernel", lambda weight, compute: 0)
    monkeypatch.setattr(linear, "_CUDA_ROWS", {})
    with FakeTensorMode(), torch.inference_mode():
        yield drawn_model(TINY, LoadOptions(request.param, "bf16", "cuda"), Path(KIT) / "model")


def test_the_language_model(model: Model) -> None:
    llm = model.llm
    cache = llm.new_cache(2, 64)
    ids = torch.zeros(2, dtype=torch.long, device=CARD)
    captured = llm.step_at(cache, ids, ids)
    assert captured.shape == (2, 6761) and captured.device == CARD and captured.dtype == torch.float32
    hidden = llm.extend(cache, 0, llm.embed_text([1, 2, 3]))
    assert hidden.device == CARD
    for lengths in ([5, 5], [5, 6]):
        cache.lengths[:] = lengths
        assert llm.logits(llm.step(cache, llm.embed_speech([1, 2]))).device == CARD
    draws = torch.zeros(2, 2, dtype=torch.float64, device=CARD)
    recent = torch.zeros(2, 10, dtype=torch.long, device=CARD)
    assert RasSampler(RasParams())(captured, recent, draws).device == CARD


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_the_flow(model: Model, streaming: bool, together: bool) -> None:
    flow = model.flow
    made = [
        flow.conditions(
            FlowRequest(
                tuple(range(n)), torch.ones(192), (1, 2), torch.zeros(4, 80), not streaming, streaming
            )
        )
        for n in (40, 30)
    ]
    lengths = [int(k.mu.shape[0]) for k in made]
    plan = AttentionPlan(tuple(lengths * (2 if together else 1)), 50 if streaming else None)
    fixed: Any = flow._fixed(made, max(lengths))
    x = flow.noise[None, : max(lengths)].repeat(2, 1, 1)
    tables = flow.dit.prepare(max(lengths), plan)
    velocity = flow.dit.velocity(x, fixed if together else fixed.chunk(2)[0], 0, tables)
    assert velocity.shape == (4 if together else 2, max(lengths), 80) and velocity.device == CARD


@pytest.mark.parametrize("final", [False, True])
def test_the_vocoder(model: Model, final: bool) -> None:
    vocoder, mel = model.vocoder, torch.zeros(60, 80)
    f0 = vocoder.f0(mel, final=True)
    assert f0.device.type == "cpu" and f0.dtype == torch.float64
    cycles = vocoder.cycles(f0, torch.zeros(9, dtype=torch.float64))
    samples = vocoder.decode(mel, vocoder.source(f0, cycles, 0), final=final)
    assert samples.shape == ((60 if final else 56) * 480,) and samples.device == CARD
