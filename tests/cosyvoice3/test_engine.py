"""The engine from enrolment to sound with the tiny checkpoint: modes, seeds, memory, failures."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.codes import CosydError  # noqa: E402
from pipeline.engines.base import (  # noqa: E402
    EngineUnavailable,
    Options,
    Segment,
    VoiceFeatures,
    open_engine,
)
from pipeline.engines.cosyvoice3 import starting  # noqa: E402
from pipeline.engines.cosyvoice3.engine import (  # noqa: E402
    CosyVoice3Engine,
    model_folder,
)
from pipeline.engines.cosyvoice3.plan import options_of, safer_options  # noqa: E402
from pipeline.engines.cosyvoice3.starting import rss_bytes  # noqa: E402
from pipeline.planning.memory import wished  # noqa: E402
from pipeline.profile import Config  # noqa: E402
from pipeline.profile.config import Cosyvoice  # noqa: E402

NEVER = threading.Event()
SHORT = "你好。"


def config(weights: str = "fp32") -> Config:
    return dataclasses.replace(Config(), weights=weights, gpu="none")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CosyVoice3Engine]:
    made = CosyVoice3Engine(KIT / "model", tmp_path_factory.mktemp("cache"))
    footprint = made.load(config(), NEVER)
    assert footprint.rss_bytes and footprint.vram_bytes is None and not made.notices
    yield made
    made.close()


@pytest.fixture(scope="module")
def voice(engine: CosyVoice3Engine) -> VoiceFeatures:
    import soundfile

    audio, rate = soundfile.read(KIT / "golden" / "prompt_24k.wav", dtype="float32")
    return engine.enrol(audio, rate, "你好，请问图书馆在哪里？")


def speak(engine: Any, voice: Any, text: str = SHORT, idx: int = 0, **options: Any) -> Any:
    asked = Options(**{"seed": 1, "mode": "zero_shot", **options})
    chunks = list(engine.synthesize(Segment(idx, text, 0, len(text)), voice, asked, NEVER))
    assert all(0 < len(c) <= 24_000 and c.dtype == np.float32 for c in chunks)
    return np.concatenate(chunks)


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("zero_shot", {}),
        ("cross_lingual", {}),
        ("instruct", {"instruct": "用四川话说"}),
        ("zero_shot", {"speed": 1.5}),
    ],
)
def test_every_mode_speaks(engine: Any, voice: Any, mode: str, more: dict[str, Any]) -> None:
    samples = speak(engine, voice, mode=mode, **more)
    assert np.isfinite(samples).all() and 1e-3 < np.abs(samples).max() <= 0.99


def test_the_same_seed_gives_the_same_samples(engine: Any, voice: Any) -> None:
    first, again, other = (speak(engine, voice, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_several_segments_together_are_those_of_one_after_another(engine: Any, voice: Any) -> None:
    segments = [Segment(i, t, 0, len(t)) for i, t in enumerate([SHORT, "Hi there.", "一二三。"])]
    options = Options(seed=5, mode="zero_shot")
    parts: dict[int, list[Any]] = {}
    for idx, chunk in engine.synthesize_many(segments, voice, options, NEVER):
        parts.setdefault(idx, []).append(chunk)
    assert sorted(parts) == [0, 1, 2]
    for s in segments:
        alone = speak(engine, voice, s.text, s.idx, seed=5)
        np.testing.assert_allclose(np.concatenate(parts[s.idx]), alone, atol=0.05)


def test_a_voice_without_transcript_is_spoken_cross_lingually(engine: Any, voice: Any) -> None:
    bare = dataclasses.replace(voice, transcript=None)
    np.testing.assert_array_equal(speak(engine, bare), speak(engine, voice, mode="cross_lingual"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"speech_tokens": np.array([6561], np.int32), "prompt_mel": np.zeros((2, 80))}, "bad_value"),
        ({"prompt_mel": np.zeros((3, 80))}, "bad_value"),
        ({"prompt_mel": np.full((150, 80), np.nan)}, "bad_value"),
        ({"speaker": np.zeros(100)}, "bad_value"),
    ],
)
def test_features_that_do_not_fit_are_refused(
    engine: Any, voice: Any, change: dict[str, Any], code: str
) -> None:
    spoiled = VoiceFeatures({**voice.arrays, **change}, "other", voice.transcript)
    with pytest.raises(CosydError) as caught:
        speak(engine, spoiled)
    assert caught.value.code == code


def test_a_ready_made_voice_name_and_missing_arrays_are_refused(engine: Any) -> None:
    with pytest.raises(CosydError):
        speak(engine, "heart")
    with pytest.raises(CosydError):
        speak(engine, VoiceFeatures({}, "x"))


def test_a_silent_and_a_long_reference_are_refused(engine: Any) -> None:
    for audio in (np.zeros(48_000, np.float32), np.ones(40 * 24_000, np.float32)):
        with pytest.raises(CosydError) as caught:
            engine.enrol(audio, 24_000, None)
        assert caught.value.code == "bad_audio"


def test_phoneme_tags_with_digits_are_spoken_although_wetext_fails(engine: Any, voice: Any) -> None:
    assert len(speak(engine, voice, "I am a [M][AY0] phone.")) > 0


def test_trim_and_close_can_be_called_at_any_time(engine: Any, voice: Any, tmp_path: Path) -> None:
    before = speak(engine, voice, seed=9)
    engine.trim()
    np.testing.assert_array_equal(speak(engine, voice, seed=9), before)
    other = CosyVoice3Engine(KIT / "model", tmp_path)
    other.close()
    other.close()
    with pytest.raises(EngineUnavailable):
        speak(other, voice)


@pytest.mark.parametrize("weights", ["int8", "bf16", "mixed", "fp32"])
def test_every_profile_loads_and_speaks(tmp_path: Path, voice: Any, weights: str) -> None:
    made = CosyVoice3Engine(KIT / "model", tmp_path)
    made.load(config(weights), NEVER)
    assert np.abs(speak(made, voice)).max() > 1e-3
    made.close()


def test_steps_and_the_reinforced_model_are_the_persons_choice(tmp_path: Path, voice: Any) -> None:
    shutil.copytree(KIT / "model", tmp_path / "model")
    asked = dataclasses.replace(config(), cosyvoice=Cosyvoice(flow_steps=4, reinforced=True))
    made = CosyVoice3Engine(tmp_path / "model", tmp_path / "cache")
    with pytest.raises(EngineUnavailable) as caught:
        made.load(asked, NEVER)
    assert caught.value.params["file"] == "llm.rl.pt"
    tensors = torch.load(tmp_path / "model" / "llm.pt", weights_only=True)
    tensors["llm_decoder.weight"] = tensors["llm_decoder.weight"].flip(0)
    torch.save(tensors, tmp_path / "model" / "llm.rl.pt")
    made.load(asked, NEVER)
    assert made._ready().flow.steps == 4
    assert {p.stem for p in (tmp_path / "cache").glob("*.json")} >= {"llm-rl-fp32", "text-rl-fp32", "steps4"}
    other = speak(made, voice)
    made.close()
    made.load(config(), NEVER)
    usual = speak(made, voice)
    assert made._ready().flow.steps == 10 and (len(usual) != len(other) or np.abs(usual - other).max() > 1e-3)
    made.close()


def test_weights_leave_the_memory_between_two_texts_and_come_back(tmp_path: Path, voice: Any) -> None:
    def resident() -> int:
        """Kilobytes of the converted weights that are in this process's memory."""
        total, ours = 0, False
        for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
            if "-" in line.split(" ", 1)[0]:
                ours = str(tmp_path) in line
            elif ours and line.startswith("Rss:"):
                total += int(line.split()[1])
        return total

    made = CosyVoice3Engine(KIT / "model", tmp_path)
    made.load(config(), NEVER)
    assert resident() == 0
    first = speak(made, voice)
    assert resident() == 0
    during = []
    for chunk in made.synthesize(Segment(0, SHORT, 0, 3), voice, Options(seed=1, mode="zero_shot"), NEVER):
        during.append((resident(), chunk))
    assert during[0][0] > 500
    assert np.array_equal(np.concatenate([chunk for _, chunk in during]), first)
    made.close()


def test_each_token_is_progress_long_before_there_is_sound(engine: Any, voice: Any) -> None:
    told: list[int] = []
    engine.on_progress = lambda: told.append(1)
    try:
        chunks = engine.synthesize(Segment(0, SHORT, 0, 3), voice, Options(seed=1, mode="zero_shot"), NEVER)
        first = next(chunks)
        before = len(told)
        seconds = (len(first) + sum(len(c) for c in chunks)) / 24_000
    finally:
        engine.on_progress = None
    assert before >= 25 * seconds + 10  # tokens, then steps of the flow


def test_the_next_safer_dtypes() -> None:
    fast = options_of(wished(config("int8"), "cpu", True))
    assert (fast.llm, fast.flow, fast.vocoder_bf16) == ("int8", "bf16", True)
    steps, chain = fast, []
    while (steps := safer_options(steps)) is not None:  # type: ignore[assignment]
        chain.append((steps.llm, steps.flow))
    assert chain == [("bf16", "fp32"), ("fp32", "fp32")]


def test_a_failed_self_test_takes_the_next_safer_dtype_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CosyVoice3Engine(KIT / "model", tmp_path)
    answers = iter(["silent", ""])
    monkeypatch.setattr(made, "_self_test", lambda stop: next(answers))
    monkeypatch.setattr(starting, "fast_bf16", lambda: True)
    made.load(config("int8"), NEVER)
    assert made.notices == ["int8+bf16: silent"]
    assert made.capabilities().dtype == "bf16+fp32"
    monkeypatch.setattr(made, "_self_test", lambda stop: "not finite")
    with pytest.raises(EngineUnavailable) as caught:
        made.load(config("int8"), NEVER)
    assert caught.value.params["problem"] == "self_test" and len(made.notices) == 3


def test_a_checkpoint_of_nothing_fails_its_self_test(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(KIT / "model", tmp_path / "model")
    tensors = torch.load(tmp_path / "model" / "hift.pt", weights_only=True)
    tensors["conv_post.parametrizations.weight.original0"].zero_()
    tensors["conv_post.bias"].fill_(-50)
    torch.save(tensors, tmp_path / "model" / "hift.pt")
    with pytest.raises(EngineUnavailable) as caught:
        CosyVoice3Engine(tmp_path / "model", tmp_path / "cache").load(config(), NEVER)
    assert "silent" in caught.value.params["detail"]


def test_without_torch_or_model_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineUnavailable) as caught:
        CosyVoice3Engine(tmp_path / "none", tmp_path).load(config(), NEVER)
    assert caught.value.code == "model_missing"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EngineUnavailable) as caught:
        CosyVoice3Engine(KIT / "model", tmp_path).load(config(), NEVER)
    assert caught.value.params["problem"] == "no_torch"


def test_the_model_folder_comes_from_the_environment() -> None:
    assert model_folder({"COSYD_MODEL_DIR": "/m"}) == Path("/m")
    assert model_folder({"COSYD_STATE_DIR": "/s"}) == Path("/s/models/Fun-CosyVoice3-0.5B")


def test_the_registry_ships_it() -> None:
    made = open_engine("cosyvoice3", {})
    assert made.name == "cosyvoice3" and "zero_shot" in made.capabilities().modes


def test_fifty_sentences_leave_the_memory_flat(engine: Any, voice: Any) -> None:
    marks = []
    for i in range(50):
        speak(engine, voice, "一二三四五六七八九十。" * 3, seed=i)
        marks.append(rss_bytes() or 0)
    assert marks[-1] - marks[4] < 20 << 20


def test_a_long_text_again_and_again_loses_nothing_and_keeps_nothing(
    engine: Any, voice: Any, rounds: Any
) -> None:
    """2,000 characters, a batch of four segments at a time; 20 times with --long."""
    sentence = "今天天气很好，我们去图书馆看书。"
    whole = (sentence * 130)[:2000]
    segments = [Segment(i, whole[at : at + 80], at, at + 80) for i, at in enumerate(range(0, 2000, 80))]
    options, marks = Options(seed=1, mode="zero_shot"), []
    for _ in range(rounds(2, 20)):
        heard: dict[int, int] = {}
        for at in range(0, len(segments), 4):
            for idx, chunk in engine.synthesize_many(segments[at : at + 4], voice, options, NEVER):
                heard[idx] = heard.get(idx, 0) + len(chunk)
        assert sorted(heard) == list(range(25)) and min(heard.values()) > 0
        marks.append(rss_bytes() or 0)
    assert marks[-1] - marks[0] < 20 << 20
