"""The captured step, with a capture that only remembers: shapes, rows, reuse, and every way it can fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cosyvoice3.conftest import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.engines.cosyvoice3.decode import Emitted, Ended, LlmRequest, decode_many  # noqa: E402
from pipeline.engines.cosyvoice3.sampling import RasParams, RasSampler  # noqa: E402
from pipeline.engines.cosyvoice3.step import (  # noqa: E402
    CAPACITY_ROUND,
    FixedStep,
    PlainStep,
    Steppers,
)


def remember(body: Any) -> Any:
    """As a graph does: what comes out stands at one address and the next run overwrites it."""
    out = body().clone()

    def replay() -> Any:
        return out.copy_(body())

    return replay


def requests_of(golden: Any) -> list[LlmRequest]:
    g = golden("llm.npz")
    names = ("text_ids", "prompt_text_ids", "prompt_speech_tokens")
    made = []
    for seed, (case, longest) in enumerate([("A", 9), ("B", 40), ("A", 60), ("B", 33), ("A", 20)]):
        ids = (tuple(g[f"{case}_{n}"][0].tolist()) for n in names)
        made.append(LlmRequest(*ids, seed=seed, max_tokens=longest))
    return made


def tokens(events: Any) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Emitted):
            found.setdefault(event.index, []).append(event.token)
        else:
            assert isinstance(event, Ended)
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_fixed_steps_decode_what_plain_ones_do(make_llm: Any, golden: Any, never: Any, count: int) -> None:
    llm = make_llm("fp32")
    sampler, requests = RasSampler(RasParams.of(llm.config)), requests_of(golden)[:count]
    steppers = Steppers(llm, remember)
    plain = tokens(decode_many(llm, requests, sampler, never))
    assert tokens(decode_many(llm, requests, sampler, never, steppers=steppers)) == plain
    kept = steppers._kept
    assert kept is not None and kept.rows == 1 << (count - 1).bit_length()
    assert tokens(decode_many(llm, requests, sampler, never, steppers=steppers)) == plain
    assert steppers._kept is kept, "the second decoding captures nothing"


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-4), ("bf16", 0.25), ("int8", 0.25)])
def test_logits_of_a_fixed_step(make_llm: Any, dtype: str, tolerance: float) -> None:
    """Masked attention is another kernel: in 16 bit it may differ by what 16 bit differ from fp32."""
    llm = make_llm(dtype)
    fixed, plain = FixedStep(llm, 2, 64, remember), PlainStep(llm, 2, 64)
    for position in range(6):
        ids = [position, 40 + position]
        a, b = fixed.step(ids), plain.step(ids)
        assert (a.log_softmax(-1) - b.log_softmax(-1)).abs().max() < tolerance
    assert fixed.cache.lengths == plain.cache.lengths == [6, 6]
    with pytest.raises(ValueError, match="64"):
        for _ in range(64):
            fixed.step([1])


def test_a_longer_table_of_positions_does_not_disturb_a_capture(make_llm: Any) -> None:
    llm = make_llm("fp32")
    fixed = FixedStep(llm, 1, 64, remember)
    before = fixed.step([5]).clone()
    held = fixed._tables
    llm.new_cache(1, 64 + held[0].shape[0])
    assert llm.rotary[0] is not held[0] and fixed._tables[0] is held[0]
    fixed.cache.lengths[0] = 0
    torch.testing.assert_close(fixed.step([5]), before)


def fails(body: Any) -> Any:
    raise RuntimeError("operation not permitted when stream is capturing")


def differs(body: Any) -> Any:
    return lambda: body() + 1.0


def spoils(body: Any) -> Any:
    return lambda: body() * float("nan")


@pytest.mark.parametrize("capture", [fails, differs, spoils])
def test_a_capture_that_fails_or_lies_leaves_plain_steps(
    make_llm: Any, golden: Any, never: Any, capture: Any
) -> None:
    llm = make_llm("fp32")
    sampler, requests = RasSampler(RasParams.of(llm.config)), requests_of(golden)[:2]
    steppers = Steppers(llm, capture)
    made = tokens(decode_many(llm, requests, sampler, never, steppers=steppers))
    assert made == tokens(decode_many(llm, requests, sampler, never))
    assert steppers.trouble and isinstance(steppers.take(1, 10), PlainStep)


def test_out_of_memory_in_a_capture_is_said(make_llm: Any) -> None:
    def full(body: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Steppers(make_llm("fp32"), full).take(1, 10)


def test_one_decoding_at_a_time_has_the_captured_cache(make_llm: Any) -> None:
    steppers = Steppers(make_llm("fp32"), remember)
    first = steppers.take(1, 10)
    assert isinstance(first, FixedStep) and first.cache.capacity == CAPACITY_ROUND
    second = steppers.take(1, 10)
    assert isinstance(second, PlainStep)
    steppers.forget()
    assert steppers._kept is first, "not while it is in use"
    steppers.put(second)
    steppers.put(first)
    assert steppers.take(1, CAPACITY_ROUND) is first
    steppers.put(first)
    assert steppers.take(1, CAPACITY_ROUND + 1) is not first, "a longer text needs a larger one"
    assert isinstance(Steppers(make_llm("fp32"), remember).take(17, 10), PlainStep)


def test_an_abandoned_decoding_hands_its_step_back(make_llm: Any, golden: Any, never: Any) -> None:
    llm = make_llm("fp32")
    steppers = Steppers(llm, remember)
    events = decode_many(
        llm, requests_of(golden)[:1], RasSampler(RasParams.of(llm.config)), never, steppers=steppers
    )
    next(events)
    events.close()
    assert isinstance(steppers.take(1, 10), FixedStep)
    steppers.put(steppers._kept)  # type: ignore[arg-type]
    steppers.forget()
    assert steppers._kept is None
