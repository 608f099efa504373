"""The language model against upstream's numbers, and its batches against single rows."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.cosyvoice3.conftest import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.codes import CosydError  # noqa: E402
from pipeline.engines.cosyvoice3.bistream import BistreamRequest, decode_bistream, first_fill  # noqa: E402
from pipeline.engines.cosyvoice3.decode import (  # noqa: E402
    Emitted,
    Ended,
    LlmRequest,
    PrefixMemo,
    decode_many,
    prefill,
    prefill_embeddings,
)
from pipeline.engines.cosyvoice3.sampling import GreedySampler, RasParams, RasSampler  # noqa: E402

GREEDY = GreedySampler(6561)

# fp32 as the kit asks. bf16 has 8 bits of mantissa: on the kit the largest difference over all 6761 ids is
# 0.14. # int8 adds a rounding of 1/254 of each row's largest weight: 0.38 (rows of 64 weights; a longer row
# averages more). # Near ties may swap places, so what is held of the choice is its price: the id that a dtype
# likes best must be within # CHOICE of the best in fp32's own log-probabilities (measured: 0 and 0.12).
LOGPROB_TOLERANCE = {"fp32": 2e-4, "bf16": 0.25, "int8": 0.5}
CHOICE = {"fp32": 0.0, "bf16": 0.1, "int8": 0.25}


def request_of(g: dict[str, Any], case: str, **more: Any) -> LlmRequest:
    ids = (
        tuple(g[f"{case}_{n}"][0].tolist()) for n in ("text_ids", "prompt_text_ids", "prompt_speech_tokens")
    )
    return LlmRequest(*ids, **more)


def tokens_of(events: Any, index: int = 0) -> list[int]:
    return [e.token for e in events if isinstance(e, Emitted) and e.index == index]


@pytest.mark.parametrize("case", ["A", "B"])
def test_prefill_embeddings_are_upstreams(make_llm: Any, golden: Any, case: str) -> None:
    g = golden("llm.npz")
    made = prefill_embeddings(make_llm("fp32"), request_of(g, case))
    np.testing.assert_array_equal(made.numpy(), g[f"{case}_lm_input_embeds"][0])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("case", ["A", "B"])
def test_teacher_forced_log_probabilities(make_llm: Any, golden: Any, case: str, dtype: str) -> None:
    g, llm = golden("llm.npz"), make_llm(dtype)
    cache = llm.new_cache(1, 128)
    with torch.inference_mode():
        hidden = prefill(llm, cache, 0, request_of(g, case), None)[None]
        for k in range(9):
            found = llm.logits(hidden).log_softmax(-1)[0].numpy()
            wanted = g[f"{case}_logprobs"][k]
            assert np.abs(found - wanted).max() < LOGPROB_TOLERANCE[dtype]
            assert wanted[found.argmax()] >= wanted.max() - CHOICE[dtype]
            if dtype == "fp32":
                assert np.abs(hidden[0].numpy() - g[f"{case}_last_hidden"][k]).max() < 1e-4
            if k < 8:
                hidden = llm.step(cache, llm.embed_speech([int(g[f"{case}_forced_tokens"][k])]))


def test_greedy_decoding_gives_upstreams_tokens(make_llm: Any, golden: Any, never: Any) -> None:
    g = golden("llm.npz")
    request = request_of(g, "A", max_tokens=40)
    events = list(decode_many(make_llm("fp32"), [request], GREEDY, never))
    assert tokens_of(events) == g["A_greedy_tokens"].tolist()
    assert events[-1] == Ended(0, "length")


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_16_and_8_bit_like_what_fp32_likes_along_upstreams_greedy_path(
    make_llm: Any, golden: Any, dtype: str
) -> None:
    """Which of two near ties wins depends on the kernel; what the choice costs by fp32's measure must not."""
    g = golden("llm.npz")
    exact, small = make_llm("fp32"), make_llm(dtype)
    with torch.inference_mode():
        caches = [llm.new_cache(1, 128) for llm in (exact, small)]
        hidden = [
            prefill(llm, c, 0, request_of(g, "A"), None)[None]
            for llm, c in zip((exact, small), caches, strict=True)
        ]
        for token in g["A_greedy_tokens"].tolist():
            wanted = exact.logits(hidden[0]).log_softmax(-1)[0, :6561]
            liked = int(small.logits(hidden[1])[0, :6561].argmax())
            assert wanted[liked] >= wanted.max() - CHOICE[dtype]
            hidden = [
                llm.step(c, llm.embed_speech([token])) for llm, c in zip((exact, small), caches, strict=True)
            ]


def test_a_batch_speaks_what_each_request_speaks_alone(make_llm: Any, golden: Any, never: Any) -> None:
    g, llm = golden("llm.npz"), make_llm("fp32")
    requests = [
        request_of(g, "A", seed=1, max_tokens=9),
        request_of(g, "B", seed=2),
        request_of(g, "A", seed=3, max_tokens=60),
        request_of(g, "B", seed=1, max_tokens=33),
    ]
    sampler = RasSampler(RasParams.of(llm.config))
    together = list(decode_many(llm, requests, sampler, never))
    for i, request in enumerate(requests):
        alone = list(decode_many(llm, [request], sampler, never))
        assert tokens_of(together, i) == tokens_of(alone)
        assert [e.reason for e in together if e == Ended(i, getattr(e, "reason", "stop"))] == [
            alone[-1].reason
        ]


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-4), ("bf16", 0.1), ("int8", 0.1)])
def test_a_batched_step_gives_the_log_probabilities_of_single_steps(
    make_llm: Any, golden: Any, dtype: str, tolerance: float
) -> None:
    """In 16 bit other row counts take other kernels: rounding differs, by less than the dtype itself
    costs."""
    g, llm = golden("llm.npz"), make_llm(dtype)
    requests = [request_of(g, case) for case in "ABAB"]
    tokens = [[5, 6, 7, 8], [9, 10, 11, 12]]
    with torch.inference_mode():
        cache = llm.new_cache(4, 128)
        for row, request in enumerate(requests):
            prefill(llm, cache, row, request, None)
        for column in tokens:
            together = llm.logits(llm.step(cache, llm.embed_speech(column))).log_softmax(-1)
        for row, request in enumerate(requests):
            single = llm.new_cache(1, 128)
            prefill(llm, single, 0, request, None)
            for column in tokens:
                alone = llm.logits(llm.step(single, llm.embed_speech([column[row]]))).log_softmax(-1)
            assert (together[row] - alone[0]).abs().max() < tolerance


def test_the_reused_prefix_changes_nothing(make_llm: Any, golden: Any, never: Any) -> None:
    g, llm, memo = golden("llm.npz"), make_llm("fp32"), PrefixMemo()
    request = request_of(g, "A", max_tokens=40)
    first = tokens_of(decode_many(llm, [request], GREEDY, never, memo=memo))
    assert memo.prefix is not None and memo.ids == request.prompt_text
    again = tokens_of(decode_many(llm, [request, request], GREEDY, never, memo=memo), 1)
    assert first == again == g["A_greedy_tokens"].tolist()


def test_a_seed_is_reproducible_and_matters(make_llm: Any, golden: Any, never: Any) -> None:
    g, llm = golden("llm.npz"), make_llm("fp32")
    sampler = RasSampler(RasParams.of(llm.config))
    runs = [tokens_of(decode_many(llm, [request_of(g, "A", seed=s)], sampler, never)) for s in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


class AlwaysStop:
    """Draws the likeliest allowed control id, else the likeliest code."""

    def __call__(self, logits: Any, recent: Any, draws: Any) -> Any:
        control = logits[:, 6561:]
        stop = control.argmax(-1) + 6561
        return torch.where(control.amax(-1) > -torch.inf, stop, logits[:, :6561].argmax(-1))


def test_the_minimum_length_is_enforced_and_upstreams_quirk_is_there(
    make_llm: Any, golden: Any, never: Any
) -> None:
    g, llm = golden("llm.npz"), make_llm("fp32")
    held = list(decode_many(llm, [request_of(g, "A")], AlwaysStop(), never))
    assert len(tokens_of(held)) == 2 * 6 and held[-1] == Ended(0, "stop")
    quirk = list(decode_many(llm, [request_of(g, "A", enforce_min=False)], AlwaysStop(), never))
    assert tokens_of(quirk) == [] and quirk[-1] == Ended(0, "stop")


def test_length_and_repetition_limits_end_a_request(make_llm: Any, golden: Any, never: Any) -> None:
    class Same:
        def __call__(self, logits: Any, recent: Any, draws: Any) -> Any:
            return torch.full((logits.shape[0],), 7)

    g, llm = golden("llm.npz"), make_llm("fp32")
    stuck = list(decode_many(llm, [request_of(g, "A")], Same(), never))
    assert len(tokens_of(stuck)) == 50 and stuck[-1] == Ended(0, "repetition")
    full = list(decode_many(llm, [request_of(g, "A")], GREEDY, never))
    assert len(tokens_of(full)) == 20 * 6 and full[-1] == Ended(0, "length")


def test_a_stop_flag_ends_every_row_at_the_next_token(make_llm: Any, golden: Any) -> None:
    g, stop = golden("llm.npz"), threading.Event()
    events = decode_many(make_llm("fp32"), [request_of(g, "A"), request_of(g, "B")], GREEDY, stop)
    assert isinstance(next(events), Emitted)
    stop.set()
    rest = list(events)
    assert [e for e in rest if isinstance(e, Ended)] == [Ended(0, "stopped"), Ended(1, "stopped")]
    assert sum(isinstance(e, Emitted) for e in rest) <= 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"text": ()}, "empty_text"),
        ({"text": (1280,)}, "bad_value"),
        ({"text": (-1,)}, "bad_value"),
        ({"prompt_text": (10**9,)}, "bad_value"),
        ({"prompt_speech": (6561,)}, "bad_value"),
        ({"prompt_speech": (-5,)}, "bad_value"),
    ],
)
def test_ids_out_of_range_are_refused_before_any_work(
    make_llm: Any, never: Any, change: dict[str, Any], code: str
) -> None:
    request = LlmRequest(**{"text": (1, 2), "prompt_text": (963,), "prompt_speech": (5,), **change})
    with pytest.raises(CosydError) as caught:
        next(decode_many(make_llm("fp32"), [request], GREEDY, never))
    assert caught.value.code == code


def test_bidirectional_streaming_gives_upstreams_tokens(make_llm: Any, golden: Any, never: Any) -> None:
    g = golden("llm_bistream.json")

    class Rule:
        """Greedy; after 60 speech tokens the stop id."""

        count = 0

        def __call__(self, logits: Any, recent: Any, draws: Any) -> Any:
            if self.count == 60:
                return torch.tensor([6562])
            self.count += 1
            return logits[:, :6561].argmax(-1)

    request = BistreamRequest(tuple(g["prompt_text_ids"]), tuple(g["prompt_speech_tokens"]), 963)
    out = list(decode_bistream(make_llm("fp32"), request, iter(g["text_ids"]), Rule(), never))
    assert out == g["greedy_tokens"]


def test_a_streamed_prompt_without_end_of_prompt_is_refused(make_llm: Any, never: Any) -> None:
    with pytest.raises(CosydError):
        list(decode_bistream(make_llm("fp32"), BistreamRequest((1, 2), (), 963), [3], GREEDY, never))


@pytest.mark.parametrize(("prompt", "fill"), [(0, 15), (1, 14), (14, 1), (15, 15), (20, 10), (75, 15)])
def test_the_first_forced_fill(prompt: int, fill: int) -> None:
    assert first_fill(prompt, 15) == fill


def test_bidirectional_streaming_outgrows_its_first_cache(make_llm: Any, never: Any) -> None:
    request = BistreamRequest((1, 963), (), 963, max_tokens=700)
    out = list(decode_bistream(make_llm("fp32"), request, range(400), GREEDY, never))
    assert len(out) == 700
