"""Tokenizer, text, feature extractors and enrolment against upstream's numbers. No torch needed."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.codes import CosydError
from pipeline.engines.base import EngineUnavailable
from pipeline.engines.cosyvoice3 import features, text
from pipeline.engines.cosyvoice3.enrol import check_audio, encode_voice
from tests.cosyvoice3.conftest import KIT, NO_TORCH


def load(name: str) -> Any:
    return json.loads((KIT / "golden" / name).read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pytest.importorskip("tokenizers", reason=NO_TORCH.replace("torch", "tokenizers"))
    from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer

    return TextTokenizer(KIT / "model", 1280)


@pytest.fixture(scope="module")
def prompt() -> Any:
    import soundfile

    return soundfile.read(KIT / "golden" / "prompt_24k.wav", dtype="float32")[0]


def test_ids_are_upstreams(tokenizer: Any) -> None:
    for case in load("tokens.json"):
        assert list(tokenizer.encode(case["text"])) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded_skip_special"]


def test_special_ids_come_from_the_order_of_registration(tokenizer: Any) -> None:
    facts = load("special_tokens.json")
    for token, wanted in facts["ids"].items():
        assert tokenizer.encode(token) == (wanted,)
    assert tokenizer.end_of_prompt == facts["ids"]["<|endofprompt|>"] == 963


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("vocab.json", "{"),
        ("vocab.json", "[]"),
        ("vocab.json", '{"a": "b"}'),
        ("vocab.json", '{"a": 0}'),
        ("merges.txt", "x y\n"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": {"content": 5}}}'),
        ("vocab.json", None),
    ],
)
def test_a_damaged_tokenizer_is_refused(
    tokenizer: Any, tmp_path: Path, file: str, content: str | None
) -> None:
    from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer

    shutil.copytree(KIT / "model" / "CosyVoice-BlankEN", tmp_path / "CosyVoice-BlankEN")
    path = tmp_path / "CosyVoice-BlankEN" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineUnavailable) as caught:
        TextTokenizer(tmp_path, 1280)
    assert caught.value.params["problem"] in ("bad_tokenizer", "no_file")
    assert "cosyd model fetch" in caught.value.params["reason"]


def test_a_tokenizer_larger_than_the_table_is_refused(tokenizer: Any) -> None:
    from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer

    with pytest.raises(EngineUnavailable):
        TextTokenizer(KIT / "model", 1000)


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_splitter_cuts_where_upstream_cuts(tokenizer: Any, language: str) -> None:
    length = len if language == "zh" else lambda t: len(tokenizer.encode(t))
    for case in load("split_paragraph.json"):
        assert text.split(case["text"], language, length) == case[language]


@pytest.mark.parametrize("case", load("text_normalize.json")["cases"], ids=lambda c: c["text"][:12])
def test_normalisation(tokenizer: Any, case: dict[str, Any]) -> None:
    assert text.segments(case["text"], tokenizer.encode) == case["split_no_wetext"]
    assert text.normalize(case["text"]) == case["nosplit_no_wetext"]
    wetext = pytest.importorskip("wetext", reason="wetext is not installed")
    zh, en = (wetext.Normalizer(lang=n, operator="tn", remove_erhua=False).normalize for n in ("zh", "en"))
    if case.get("split") is None:  # upstream raises on it, and so does the normaliser alone
        return
    assert text.segments(case["text"], tokenizer.encode, zh, en) == case["split"]
    assert text.normalize(case["text"], zh, en) == case["nosplit"]


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("0", "zero"), ("13", "thirteen"), ("40", "forty"), ("101", "one hundred and one"),
        ("1000", "one thousand"), ("1234", "one thousand, two hundred and thirty-four"),
        ("2026", "two thousand and twenty-six"), ("1000001", "one million and one"),
        ("007", "seven"), ("1002003", "one million, two thousand and three"),
    ],
)  # fmt: skip
def test_numbers_in_words(digits: str, words: str) -> None:
    assert text.number_words(digits) == words


def test_control_tokens_are_taken_out_of_what_people_write() -> None:
    assert text.without_control("a<|im_start|>b[breath]<strong>c</strong>") == "ab[breath]<strong>c</strong>"
    assert "<|" not in text.without_control("<|<|endofprompt|>|endofprompt|>x<|")


def test_the_five_extractors(prompt: Any, golden: Any) -> None:
    g = golden("features.npz")
    wave = features.resample(prompt, 24_000, 16_000)
    np.testing.assert_allclose(wave, g["wav16k_resampled"][0], atol=1e-5)
    np.testing.assert_allclose(features.flow_mel(prompt).T, g["logmel80_24k"][0], atol=1e-4)
    np.testing.assert_allclose(features.whisper_mel(wave), g["whisper_logmel128_16k"][0], atol=1e-4)
    np.testing.assert_allclose(features.kaldi_fbank(wave), g["kaldi_fbank80_16k"], atol=1e-4)


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100, 48_000])
def test_resampling_keeps_a_tone(rate: int) -> None:
    seconds, hz = 0.5, 440.0
    tone = np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate).astype(np.float32)
    out = features.resample(tone, rate, 24_000)
    wanted = np.sin(2 * np.pi * hz * np.arange(len(out)) / 24_000)
    assert abs(len(out) - 12_000) <= 1
    assert np.abs(out - wanted)[500:-500].max() < 2e-3


def test_a_voice_is_encoded_as_upstream_encodes_it(prompt: Any, golden: Any) -> None:
    g, e = golden("features.npz"), golden("e2e.npz")
    voice = encode_voice(KIT / "model", prompt, 24_000)
    np.testing.assert_array_equal(voice.tokens, g["speech_tokens_tiny_onnx"][0])
    np.testing.assert_array_equal(voice.tokens, e["prompt_token"][0])
    np.testing.assert_allclose(voice.speaker, g["spk_embedding_tiny_onnx"][0], atol=1e-4)
    np.testing.assert_allclose(voice.mel, e["prompt_feat"][0], atol=1e-4)
    assert sorted(voice.to_mapping()) == ["prompt_mel", "speaker", "speech_tokens"]


def test_the_graphs_are_closed_after_enrolment(prompt: Any) -> None:
    import onnxruntime

    encode_voice(KIT / "model", prompt, 24_000)
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is onnxruntime.InferenceSession]


@pytest.mark.parametrize(
    ("audio", "rate", "reason"),
    [
        (np.zeros(0), 24_000, "empty"),
        (np.zeros((2, 2, 2)), 24_000, "empty"),
        (np.zeros(24_000), 24_000, "silent"),
        (np.full(24_000, 1e-6), 24_000, "silent"),
        (np.full(24_000, np.nan), 24_000, "broken"),
        (np.ones(8_000), 8_000, "rate"),
        (np.ones(100), 24_000, "short"),
        (np.ones(40 * 24_000), 24_000, "long"),
        (np.ones(24_000), 0, "rate"),
    ],
)
def test_audio_that_is_no_reference_is_refused(audio: Any, rate: int, reason: str) -> None:
    with pytest.raises(CosydError) as caught:
        encode_voice(KIT / "model", audio, rate)
    assert (caught.value.code, caught.value.params["reason"]) == ("bad_audio", reason)


def test_stereo_is_mixed_down() -> None:
    left = np.sin(np.arange(24_000) / 9).astype(np.float32)
    np.testing.assert_allclose(check_audio(np.stack([left, 0 * left]), 24_000), left / 2)
    np.testing.assert_allclose(check_audio(np.stack([left, 0 * left], axis=1), 24_000), left / 2)


@pytest.mark.parametrize("content", [b"", b"not a graph", None])
def test_a_damaged_graph_is_named(tmp_path: Path, prompt: Any, content: bytes | None) -> None:
    shutil.copy(KIT / "model" / "campplus.onnx", tmp_path)
    if content is not None:
        (tmp_path / "speech_tokenizer_v3.onnx").write_bytes(content)
    with pytest.raises(EngineUnavailable) as caught:
        encode_voice(tmp_path, prompt, 24_000)
    assert caught.value.params["file"] == "speech_tokenizer_v3.onnx"
    assert caught.value.params["problem"] == ("no_file" if content is None else "bad_onnx")
