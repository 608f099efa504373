"""Out of memory: freed, said, gone on from leaner without a seam; at load the smaller weights."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cosyvoice3.conftest import KIT, NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from pipeline.engines.base import EngineUnavailable, Options, OutOfMemory, Segment, VoiceFeatures  # noqa: E402
from pipeline.engines.cosyvoice3 import starting  # noqa: E402
from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine  # noqa: E402
from pipeline.engines.cosyvoice3.flow import Flow  # noqa: E402
from pipeline.engines.cosyvoice3.model import load_model  # noqa: E402
from pipeline.engines.cosyvoice3.plan import Effort, LoadOptions, safer_options, smaller_options  # noqa: E402
from pipeline.engines.cosyvoice3.recovery import exhausted, leaner_each_time  # noqa: E402
from pipeline.engines.cosyvoice3.vocoder import Vocoder  # noqa: E402
from pipeline.planning.memory import MIB  # noqa: E402
from pipeline.profile import Config  # noqa: E402

NEVER = threading.Event()
EXACT = dataclasses.replace(Config(), weights="fp32", gpu="none", batch_segments=4)
TEXTS = ["你好。", "Hi there.", "一二三。"]
SEGMENTS = [Segment(i, t, 0, len(t)) for i, t in enumerate(TEXTS)]


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CosyVoice3Engine]:
    cache = tmp_path_factory.getbasetemp() / "recovery-cache"
    made = CosyVoice3Engine(KIT / "model", cache)
    made.load(EXACT, NEVER)
    yield made
    made.close()


@pytest.fixture(scope="module")
def voice() -> VoiceFeatures:
    draw = np.random.default_rng(1)
    arrays = {
        "speech_tokens": draw.integers(0, 6561, 20).astype(np.int32),
        "prompt_mel": draw.normal(-3, 1, (40, 80)).astype(np.float32),
        "speaker": draw.normal(0, 1, 192).astype(np.float32),
    }
    return VoiceFeatures(arrays, "a voice", "the words")


def speak(engine: CosyVoice3Engine, voice: VoiceFeatures) -> list[np.ndarray]:
    parts: dict[int, list[Any]] = {}
    for idx, chunk in engine.synthesize_many(SEGMENTS, voice, Options(seed=2, mode="zero_shot"), NEVER):
        parts.setdefault(idx, []).append(chunk)
    return [np.concatenate(parts[i]) for i in range(len(SEGMENTS))]


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: Callable[[int], bool], error: Exception
) -> list[int]:
    """`owner.name` fails at the calls `when` says; the list holds one entry for each call."""
    real, calls = getattr(owner, name), []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if when(len(calls)):
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


@pytest.mark.parametrize("call", [1, 2, 3])
def test_once_out_of_memory_costs_no_sample_and_gives_none_twice(
    engine: CosyVoice3Engine, voice: VoiceFeatures, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    whole = speak(engine, voice)
    failing(monkeypatch, Vocoder, "decode", lambda n: n == call, MemoryError())
    again = speak(engine, voice)
    for a, b in zip(whole, again, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=0.05)  # other batches round otherwise
    assert engine.notices == [f"out of ram: {Effort(1, 1, True, 150, False)}"]
    engine.load(EXACT, NEVER)
    assert engine.notices == []


def test_the_leanest_way_speaks_the_same(engine: CosyVoice3Engine, voice: VoiceFeatures) -> None:
    whole = speak(engine, voice)
    engine._effort = Effort(1, 1, False, 50, False)
    for a, b in zip(whole, speak(engine, voice), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=0.05)


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (MemoryError(), "ram"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: x"), "ram"),
        (torch.OutOfMemoryError("CUDA out of memory"), "vram"),
    ],
)
def test_what_never_fits_is_tried_three_times_and_reported(
    engine: CosyVoice3Engine,
    voice: VoiceFeatures,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    resource: str,
) -> None:
    calls = failing(monkeypatch, Flow, "mel_many", lambda n: True, error)
    with pytest.raises(OutOfMemory) as caught:
        speak(engine, voice)
    assert caught.value.resource == resource and len(calls) == 3
    assert caught.value.__context__ is None, "its frames would keep the failed tensors"
    monkeypatch.undo()
    assert len(speak(engine, voice)) == 3


def test_other_errors_are_not_taken_for_it(
    engine: CosyVoice3Engine, voice: VoiceFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(monkeypatch, Flow, "mel_many", lambda n: True, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        speak(engine, voice)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (RuntimeError("CUDA error: out of memory"), "vram"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "vram"),
        (RuntimeError("CUDA error: device-side assert triggered"), None),
        (ValueError("out of memory"), None),
    ],
)
def test_the_words_of_the_libraries(error: Exception, resource: str | None) -> None:
    assert exhausted(error) == resource


def test_less_each_time_and_only_what_was_not_given() -> None:
    efforts: list[Effort] = []

    def run(effort: Effort) -> Iterator[tuple[int, Any]]:
        efforts.append(effort)
        for at in range(4):
            if len(efforts) == at + 1 < 3:
                raise MemoryError
            for index in (7, 8):
                yield index, np.arange(at * 10 * len(efforts), (at + 1) * 10 * len(efforts), dtype=np.float32)

    told: list[str] = []
    given: dict[int, list[float]] = {7: [], 8: []}
    for index, chunk in leaner_each_time(run, Effort(4, 4), lambda effort, resource: told.append(resource)):
        assert len(chunk)
        given[index] += chunk.tolist()
    assert given[7] == given[8] == list(range(120)) and told == ["ram", "ram"]
    assert [(e.decoded_together, e.branches_together, e.window) for e in efforts] == [
        (4, True, 150), (1, True, 150), (1, False, 50),
    ]  # fmt: skip


# -- at load --


def loader(refused: set[str], seen: list[LoadOptions]) -> Callable[..., Any]:
    def load(folder: Path, cache: Path, options: LoadOptions) -> Any:
        seen.append(options)
        if options.llm in refused:
            raise MemoryError
        return load_model(folder, cache, options)

    return load


def test_weights_that_do_not_fit_are_loaded_smaller(tmp_path: Path, voice: VoiceFeatures) -> None:
    seen: list[LoadOptions] = []
    made = CosyVoice3Engine(KIT / "model", tmp_path, loader({"fp32", "bf16"}, seen))
    made.load(EXACT, NEVER)
    assert [o.llm for o in seen] == ["fp32", "int8"] and made.notices == ["fp32+fp32: out of ram"]
    assert len(speak(made, voice)) == 3
    with pytest.raises(OutOfMemory):
        CosyVoice3Engine(KIT / "model", tmp_path, loader({"fp32", "int8"}, seen)).load(EXACT, NEVER)


def test_smaller_and_safer_do_not_lead_in_a_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LoadOptions] = []
    made = CosyVoice3Engine(KIT / "model", tmp_path, loader({"fp32", "bf16"}, seen))
    monkeypatch.setattr(made, "_self_test", lambda stop: "silent")
    with pytest.raises(EngineUnavailable):
        made.load(dataclasses.replace(EXACT, weights="int8"), NEVER)
    assert len(seen) == len(set(seen)) <= 4


def test_safer_and_smaller() -> None:
    card = LoadOptions("bf16", "bf16", "cuda")
    assert smaller_options(card) == LoadOptions("int8", "bf16", "cuda")
    assert smaller_options(LoadOptions("int8", "fp32")) is None
    assert safer_options(card) == LoadOptions("fp32", "fp32", "cuda")
    assert safer_options(LoadOptions("fp32", "fp32", vocoder_bf16=True)) == LoadOptions("fp32", "fp32")


def test_little_memory_at_load_means_less_at_once_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CosyVoice3Engine(KIT / "model", tmp_path)
    monkeypatch.setattr(starting, "ram_free", lambda: (1500 * MIB, 4096 * MIB))
    made.load(dataclasses.replace(EXACT, weights="bf16", longest_segment_s=40.0), NEVER)
    assert made.plan is not None and made.plan.reduced and made.plan.choice.llm == "int8"
    assert made.capabilities().longest_segment_s == made.plan.choice.longest_s
    assert made.notices[0].startswith("memory: ")
    monkeypatch.setattr(starting, "ram_free", lambda: None)
    made.load(EXACT, NEVER)
    assert not made.plan.reduced and made.notices == []
