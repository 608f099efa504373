"""Everything joined: upstream's end-to-end run, streaming, batches, other sizes than the kit's."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)


from pipeline.codes import CosydError  # noqa: E402
from pipeline.engines.cosyvoice3 import prompts, synthesis  # noqa: E402
from pipeline.engines.cosyvoice3.bistream import decode_bistream  # noqa: E402
from pipeline.engines.cosyvoice3.decode import Emitted, PrefixMemo, decode_many  # noqa: E402
from pipeline.engines.cosyvoice3.flow import FlowRequest  # noqa: E402
from pipeline.engines.cosyvoice3.model import LoadOptions, Model, load_model  # noqa: E402
from pipeline.engines.cosyvoice3.random_weights import FULL_SIZE, random_weights, yaml_text  # noqa: E402
from pipeline.engines.cosyvoice3.sampling import GreedySampler, RasParams, RasSampler  # noqa: E402
from pipeline.engines.cosyvoice3.schema import expected_flow, expected_llm, expected_vocoder  # noqa: E402
from pipeline.engines.cosyvoice3.vocoder_stream import VocoderStream  # noqa: E402

GREEDY = GreedySampler(6561)

# From a mel of its own the waveform may differ by 0.05 (the kit's README): 1e-5 in the mel moves F0 by 1e-3
# Hz and the phase sum carries that on. Mels are held to 1e-4, and the waveform of the stored mel to 1e-4.
WAVE_TOLERANCE = 0.05


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, formula_noise: Any) -> Model:
    return load_model(KIT / "model", tmp_path_factory.mktemp("cache"), LoadOptions(), formula_noise)


@pytest.fixture(scope="module")
def voice(golden: Any) -> synthesis.Voice:
    g = golden("e2e.npz")
    arrays = (torch.from_numpy(g[n]) for n in ("prompt_feat", "embedding"))
    mel, speaker = (a[0] if a.ndim > 1 and a.shape[0] == 1 else a for a in arrays)
    return synthesis.Voice(tuple(g["prompt_token"][0].tolist()), mel, speaker)


@pytest.fixture(scope="module")
def request_100(model: Model, voice: synthesis.Voice, golden: Any) -> Any:
    e = golden("e2e.json")
    transcript = e["prompt_text"].partition("<|endofprompt|>")[2]
    return prompts.llm_request(
        model.tokenizer, "zero_shot", e["text"], voice.tokens, transcript=transcript, max_tokens=100
    )


def test_tokens_and_mel_are_upstreams(
    model: Model, voice: Any, request_100: Any, golden: Any, never: Any
) -> None:
    g = golden("e2e.npz")
    events = decode_many(model.llm, [request_100], GREEDY, never)
    tokens = [e.token for e in events if isinstance(e, Emitted)]
    assert tokens == g["tokens"].tolist()
    mel = model.flow.mel(FlowRequest(tuple(tokens), voice.speaker, voice.tokens, voice.mel))
    np.testing.assert_allclose(mel.t(), g["mel"][0], atol=1e-4)


@pytest.mark.parametrize("name", ["wav", "wav_speed_1_25", "stream_wav"])
def test_the_stored_mel_gives_upstreams_waveform(model: Model, golden: Any, name: str) -> None:
    g = golden("e2e.npz")
    mel = torch.from_numpy(g["stream_mel" if name == "stream_wav" else "mel"][0]).t()
    if name == "wav_speed_1_25":
        mel = synthesis.change_speed(mel, 1.25)
    samples = torch.cat(list(VocoderStream(model.vocoder).push(mel, final=True)))
    np.testing.assert_allclose(samples, g[name][0], atol=1e-4)


@pytest.mark.parametrize(("speed", "name"), [(1.0, "wav"), (1.25, "wav_speed_1_25")])
def test_the_whole_way(
    model: Model, voice: Any, request_100: Any, golden: Any, never: Any, speed: float, name: str
) -> None:
    out = synthesis.speak_many(model, voice, [request_100], GREEDY, never, speed=speed)
    samples = np.concatenate([s for _, s in out])
    np.testing.assert_allclose(samples, golden("e2e.npz")[name][0], atol=WAVE_TOLERANCE)


def test_streaming_gives_upstreams_chunks_and_resets_its_hop(
    model: Model, voice: Any, request_100: Any, golden: Any, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = golden("e2e.npz")
    for _ in range(2):  # upstream's second request would start with 100-token chunks
        seen: list[Any] = []

        class Watched(VocoderStream):
            def push(self, mel: Any, *, final: bool = False, seen: Any = seen) -> Any:
                pieces = list(super().push(mel, final=final))
                seen.append((mel, sum(len(p) for p in pieces)))
                yield from pieces

        monkeypatch.setattr(synthesis, "VocoderStream", Watched)
        pieces = list(synthesis.speak_streaming(model, voice, request_100, GREEDY, never))
        assert [n for _, n in seen] == g["stream_chunk_samples"].tolist()
        np.testing.assert_allclose(torch.cat([m for m, _ in seen]).t(), g["stream_mel"][0], atol=1e-4)
        np.testing.assert_allclose(np.concatenate(pieces), g["stream_wav"][0], atol=WAVE_TOLERANCE)
        assert all(0 < len(p) <= 24_000 and p.dtype == np.float32 for p in pieces)


def test_silent_tokens_are_thinned_as_upstream_thins_them(golden: Any) -> None:
    facts = golden("silent_tokens.json")
    silence = synthesis.SilenceFilter()
    assert [t for t in facts["in"] if silence.keeps(t)] == facts["out"]
    assert frozenset(facts["silent_tokens"]) == synthesis.SILENT
    assert facts["max_run"] == synthesis.SILENT_RUN


@pytest.mark.parametrize("prompt", [0, 20, 25, 75, 76])
def test_chunk_borders_fall_on_the_masks_blocks(prompt: int) -> None:
    plan, cuts = synthesis.ChunkPlan(prompt, 3), []
    for count in range(1, 600):
        if (due := plan.due(count)) is not None:
            assert due == count
            plan.done(due)
            cuts.append(plan.offset)
    assert all((prompt + c) % 25 == 0 for c in cuts)
    assert [b - a for a, b in itertools.pairwise(cuts)][:4] == [50, 100, 100, 100]


def test_segments_together_sound_as_each_alone(model: Model, voice: Any, never: Any) -> None:
    texts = ["你好。", "Hello world, this is a test.", "一二三四五六七。"]
    sampler = RasSampler(RasParams.of(model.llm.config))
    requests = [
        prompts.llm_request(model.tokenizer, "zero_shot", t, voice.tokens, transcript="你好", seed=i)
        for i, t in enumerate(texts)
    ]
    requests = [dataclasses.replace(r, max_tokens=40) for r in requests]
    together: dict[int, list[Any]] = {}
    for index, samples in synthesis.speak_many(model, voice, requests, sampler, never, memo=PrefixMemo()):
        together.setdefault(index, []).append(samples)
    assert sorted(together) == [0, 1, 2]
    for i, request in enumerate(requests):
        alone = np.concatenate([s for _, s in synthesis.speak_many(model, voice, [request], sampler, never)])
        np.testing.assert_allclose(np.concatenate(together[i]), alone, atol=WAVE_TOLERANCE)


class StopAfter:
    """Set after so many looks: a cancel at every stage."""

    def __init__(self, looks: int) -> None:
        self.left, self.looks = looks, 0

    def is_set(self) -> bool:
        self.looks += 1
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("streaming", [False, True])
def test_a_cancel_is_heard_at_every_stage(
    model: Model, voice: Any, request_100: Any, streaming: bool
) -> None:
    request = dataclasses.replace(request_100, max_tokens=60)

    def run(stop: StopAfter) -> int:
        if streaming:
            return sum(len(s) for s in synthesis.speak_streaming(model, voice, request, GREEDY, stop))
        return sum(len(s) for _, s in synthesis.speak_many(model, voice, [request], GREEDY, stop))

    free = StopAfter(10**9)
    whole = run(free)
    for looks in [0, 1, 30, *range(55, free.looks + 1, 3)]:
        stop = StopAfter(looks)
        assert run(stop) <= whole
        assert stop.looks - looks <= 3  # it ends at the next look or the one after


def test_prompt_modes(model: Model, voice: Any) -> None:
    t = model.tokenizer
    zero = prompts.llm_request(t, "zero_shot", "你好", voice.tokens, transcript="天气", seed=7)
    assert zero.prompt_text == t.encode("You are a helpful assistant.<|endofprompt|>天气")
    assert zero.prompt_speech == voice.tokens and zero.seed == 7
    instruct = prompts.llm_request(t, "instruct", "你好", voice.tokens, instruct="用四川话说")
    assert instruct.prompt_text == t.encode("You are a helpful assistant. 用四川话说<|endofprompt|>")
    assert instruct.prompt_speech == ()
    cross = prompts.llm_request(t, "cross_lingual", "你好", voice.tokens)
    assert cross.prompt_text + cross.text == t.encode("You are a helpful assistant.<|endofprompt|>你好")
    assert cross.prompt_speech == ()


@pytest.mark.parametrize(
    ("mode", "text", "more", "code"),
    [
        ("zero_shot", "...", {"transcript": "a"}, "empty_text"),
        ("zero_shot", "<|im_start|>", {"transcript": "a"}, "empty_text"),
        ("zero_shot", "a", {}, "unsupported_mode"),
        ("instruct", "a", {"instruct": " "}, "bad_value"),
        ("builtin", "a", {}, "unsupported_mode"),
        ("cross_lingual", "很" * 9000, {}, "text_too_long"),
    ],
)
def test_prompts_that_cannot_be_made_are_refused(
    model: Model, mode: Any, text: str, more: dict[str, str], code: str
) -> None:
    with pytest.raises(CosydError) as caught:
        prompts.llm_request(model.tokenizer, mode, text, (1,), **more)
    assert caught.value.code == code


def test_control_tokens_in_a_text_are_not_obeyed(model: Model) -> None:
    clean = prompts.llm_request(model.tokenizer, "cross_lingual", "ab", (1,))
    dirty = prompts.llm_request(model.tokenizer, "cross_lingual", "a<|endofprompt|>b<|endoftext|>", (1,))
    assert clean == dirty


def test_missing_transcripts_and_given_instructions_choose_the_mode() -> None:
    assert prompts.effective_mode("zero_shot", None, None) == "cross_lingual"
    assert prompts.effective_mode("zero_shot", "a", None) == "zero_shot"
    assert prompts.effective_mode("zero_shot", "a", "happily") == "instruct"


def other_sizes() -> Any:
    """Head counts, depths and widths that are neither the kit's nor the full model's."""
    return dataclasses.replace(
        FULL_SIZE,
        llm=dataclasses.replace(
            FULL_SIZE.llm, hidden=96, layers=3, heads=6, kv_heads=3, head_dim=16, intermediate=80,
            text_rows=1280, codes=300, speech_rows=333,
        ),
        flow=dataclasses.replace(
            FULL_SIZE.flow, codes=300, lookahead_channels=24, dim=96, depth=3, heads=4, head_dim=24, ff=120,
            conv_groups=8, conv_kernel=15, speaker=32,
        ),
        vocoder=dataclasses.replace(FULL_SIZE.vocoder, base=48, f0_channels=20),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_other_sizes_work_from_file_to_sound(tmp_path: Path, never: Any, dtype: Any) -> None:
    random_weights(tmp_path / "model", other_sizes(), graphs=KIT / "model")
    options = LoadOptions(llm=dtype, flow=dtype, steps=4, vocoder_bf16=dtype != "fp32")
    model = load_model(tmp_path / "model", tmp_path / "cache", options)
    again = load_model(tmp_path / "model", tmp_path / "cache", options)
    assert model.converted and not again.converted
    assert again.llm.config == other_sizes().llm and again.flow.steps == 4
    voice = synthesis.Voice((1, 2, 3), torch.randn(6, 80), torch.randn(32))
    request = prompts.llm_request(again.tokenizer, "cross_lingual", "hello", voice.tokens, max_tokens=20)
    sampler = RasSampler(RasParams.of(again.llm.config))
    first, second = (
        np.concatenate([s for _, s in synthesis.speak_many(m, voice, [request], sampler, never)])
        for m in (model, again)
    )
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all() and len(first) >= 10 * 960 and np.abs(first).max() > 1e-4


def test_the_random_checkpoint_has_the_published_tensors(official: Any) -> None:
    """Keys and shapes of the full size as the manifest lists them, by what the kit's files hold."""
    c = official.config
    for made, found in (
        (expected_llm(c.llm), official.llm),
        (expected_flow(c.flow), official.flow),
        (expected_vocoder(c.vocoder), official.vocoder),
    ):
        unused = {"llm.model.lm_head.weight", "decoder.estimator.rotary_embed.inv_freq"}
        assert made == {k: tuple(v.shape) for k, v in found.items() if k not in unused}
    count = sum(int(np.prod(s)) for s in expected_llm(FULL_SIZE.llm).values())
    assert count == 506_148_480
    assert sum(int(np.prod(s)) for s in expected_flow(FULL_SIZE.flow).values()) == 332_257_088
    assert sum(int(np.prod(s)) for s in expected_vocoder(FULL_SIZE.vocoder).values()) == 20_779_887
    assert "!new:" in yaml_text(FULL_SIZE)


def test_voices_of_one_process_do_not_share_state(model: Model, voice: Any, request_100: Any) -> None:
    """Two streams interleaved give what each gives alone."""
    request = dataclasses.replace(request_100, max_tokens=60)
    never = threading.Event()
    alone = np.concatenate(list(synthesis.speak_streaming(model, voice, request, GREEDY, never)))
    a = synthesis.speak_streaming(model, voice, request, GREEDY, never)
    b = synthesis.speak_streaming(model, voice, request, GREEDY, never)
    out: dict[str, list[Any]] = {"a": [], "b": []}
    for x, y in zip(a, b, strict=True):
        out["a"].append(x), out["b"].append(y)
    np.testing.assert_array_equal(np.concatenate(out["a"]), alone)
    np.testing.assert_array_equal(np.concatenate(out["b"]), alone)


@pytest.mark.parametrize("frames", [1, 15, 16, 17, 40, 151, 163])
def test_lengths_that_are_rounded_up_change_no_sample(make_vocoder: Any, frames: int) -> None:
    """On a CPU shapes are rounded up so that oneDNN prepares few of them."""
    vocoder = make_vocoder()
    mel = torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames)) - 3
    rounded = vocoder.whole(mel)
    vocoder._rounds = False
    try:
        np.testing.assert_allclose(rounded, vocoder.whole(mel), atol=2e-5)
    finally:
        vocoder._rounds = True


@pytest.mark.parametrize("tokens", [1, 13, 16, 31, 60])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_rounded_flow_gives_the_same_mel(make_flow: Any, tokens: int, streaming: bool) -> None:
    flow = make_flow("fp32")
    asked = FlowRequest(
        tuple(range(5 + tokens)), torch.ones(192), (1, 2, 3), torch.zeros(6, 80), not streaming, streaming
    )
    rounded = flow.mel(asked)
    flow._rounds = False
    try:
        np.testing.assert_allclose(rounded, flow.mel(asked), atol=2e-5)
    finally:
        flow._rounds = True


def test_rounded_prefills_and_steps_give_the_same_logits(make_llm: Any) -> None:
    llm = make_llm("fp32")
    rows = []
    for rounds in (True, False):
        llm._rounds = rounds
        with torch.inference_mode():
            cache = llm.new_cache(2, 128)
            found = [
                llm.extend(cache, 0, llm.embed_text(range(37))),
                llm.extend(cache, 1, llm.embed_text([4])),
            ]
            found.append(llm.extend(cache, 0, llm.embed_text(range(5, 25))))
            assert cache.lengths == [57, 1]
            found += [llm.step(cache, llm.embed_speech([n, n + 1]))[0] for n in range(10)]
            found.append(llm.extend(cache, 0, llm.embed_text(range(61))))
            assert cache.lengths == [128, 11], "rounding up stops at the capacity"
        rows.append(torch.stack(found))
    llm._rounds = True
    np.testing.assert_allclose(rows[0], rows[1], atol=2e-5)


class Talk:
    """Greedy among speech codes; the stop id after `count` of them, once the text is over."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, logits: Any, recent: Any, draws: Any) -> Any:
        self.left -= 1
        return torch.tensor([6562]) if self.left < 0 else logits[:, :6561].argmax(-1)


def test_text_in_pieces_is_heard_while_it_still_comes(model: Model, never: Any) -> None:
    config = model.flow.config
    voice = synthesis.Voice((), torch.zeros(0, config.mel), torch.ones(config.speaker))
    words = [f"Piece {n}, and on. " for n in range(4)]
    request = prompts.pieces_request(model.tokenizer, "cross_lingual", voice.tokens)
    ids = [i for word in words for i in model.tokenizer.encode(word)]
    count = 3 * len(ids) + 40  # three speech tokens for a text id, by the model's mix, and an end
    given = 0

    def pieces() -> Any:
        nonlocal given
        for word in words:
            given += 1
            yield word

    chunks, given_at_first = [], 0
    for chunk in synthesis.speak_pieces(model, voice, request, pieces(), Talk(count), never):
        given_at_first = given_at_first or given
        chunks.append(chunk)
    assert 0 < given_at_first < len(words)
    silence = synthesis.SilenceFilter()
    tokens = [
        t for t in decode_bistream(model.llm, request, iter(ids), Talk(count), never) if silence.keeps(t)
    ]
    assert sum(map(len, chunks)) == 960 * len(tokens)
    # what is heard while it is made is what the same tokens give when they are all there
    whole = list(synthesis._speak_as_they_come(model, voice, iter(tokens), never, synthesis.NORMAL))
    np.testing.assert_array_equal(np.concatenate(chunks), np.concatenate(whole))


def test_pieces_that_say_nothing_or_never_end_are_refused(model: Model, voice: Any, never: Any) -> None:
    request = prompts.pieces_request(model.tokenizer, "cross_lingual", voice.tokens)
    for pieces in ([], ["", " … ", "<|endofprompt|>"]):
        with pytest.raises(CosydError) as refused:
            list(synthesis.speak_pieces(model, voice, request, pieces, Talk(99), never))
        assert refused.value.code == "empty_text"
    short = dataclasses.replace(request, max_tokens=40)
    with pytest.raises(CosydError) as cut:
        list(synthesis.speak_pieces(model, voice, short, ["word " * 40], Talk(99), never))
    assert cut.value.code == "bad_take"


def test_a_stop_ends_text_in_pieces(model: Model, voice: Any) -> None:
    stop = threading.Event()
    request = prompts.pieces_request(model.tokenizer, "cross_lingual", voice.tokens)

    def pieces() -> Any:
        for n in itertools.count():
            if n == 6:
                stop.set()
            yield "and one more piece, "

    heard = sum(len(c) for c in synthesis.speak_pieces(model, voice, request, pieces(), Talk(10**6), stop))
    assert heard < 960 * 300
