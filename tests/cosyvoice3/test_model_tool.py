"""The engine's part of `cosyd model`: looking into files, preparing, trying out, voices of spk2info.pt."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

from tests.cosyvoice3.conftest import KIT, NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from daemon.cli.main import main  # noqa: E402
from pipeline.codes import CosydError  # noqa: E402
from pipeline.engines.base import Options, Segment  # noqa: E402
from pipeline.engines.cosyvoice3 import saved_voices as taking  # noqa: E402
from pipeline.engines.cosyvoice3 import tool, trial  # noqa: E402
from pipeline.engines.cosyvoice3.engine import CosyVoice3Engine  # noqa: E402
from pipeline.engines.cosyvoice3.looking import look  # noqa: E402
from pipeline.engines.cosyvoice3.model import convert_parts, load_model, part_plans  # noqa: E402
from pipeline.engines.cosyvoice3.plan import LoadOptions  # noqa: E402
from pipeline.engines.cosyvoice3.prompts import SYSTEM  # noqa: E402
from pipeline.engines.cosyvoice3.random_weights import TOY_GRAPHS  # noqa: E402
from pipeline.engines.cosyvoice3.special_tokens import END_OF_PROMPT  # noqa: E402
from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer  # noqa: E402
from pipeline.model_child import read_child, run_tool  # noqa: E402
from pipeline.paths import StatePaths  # noqa: E402
from pipeline.profile import Config  # noqa: E402
from pipeline.voices.features import voice_for  # noqa: E402
from pipeline.voices.saved import saved_folder, saved_voices  # noqa: E402

MODEL, NEVER = KIT / "model", threading.Event()
WORDS = "你好，请问图书馆在哪里？"


def config() -> Config:
    return dataclasses.replace(Config(), weights="fp32", gpu="none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths.at(tmp_path / "state", {})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CosyVoice3Engine]:
    made = CosyVoice3Engine(MODEL, tmp_path_factory.mktemp("cache"))
    made.load(config(), NEVER)
    yield made
    made.close()


def clip() -> tuple[Any, int]:
    audio, rate = soundfile.read(KIT / "golden" / "prompt_24k.wav", dtype="float32")
    return audio, rate


def saved_entry(engine: CosyVoice3Engine) -> dict[str, Any]:
    """What upstream's `save_spkinfo` keeps of a zero-shot voice."""
    arrays = engine.enrol(*clip(), WORDS).arrays
    ids = TextTokenizer(MODEL).encode(SYSTEM + END_OF_PROMPT + WORDS)
    tokens = torch.from_numpy(np.array(arrays["speech_tokens"]))[None].to(torch.int32)
    return {
        "prompt_text": torch.tensor([ids], dtype=torch.int32),
        "prompt_text_len": torch.tensor([len(ids)], dtype=torch.int32),
        "llm_prompt_speech_token": tokens,
        "flow_prompt_speech_token": tokens,
        "prompt_speech_feat": torch.from_numpy(np.array(arrays["prompt_mel"]))[None],
        "llm_embedding": torch.from_numpy(np.array(arrays["speaker"]))[None],
        "flow_embedding": torch.from_numpy(np.array(arrays["speaker"]))[None],
    }


def test_a_whole_model_has_no_problem_and_tells_its_numbers() -> None:
    seen: list[str] = []
    found = look(MODEL, seen.append)
    assert found["problems"] == [] and found["voices"] == 0
    assert found["dtypes"] == {"llm.pt": "fp32", "flow.pt": "fp32", "hift.pt": "fp32"}
    assert {"llm.pt", "campplus.onnx"} <= set(seen)


def test_each_thing_that_is_wrong_is_told_of_its_file_all_at_once(folder: Path) -> None:
    body = (folder / "flow.pt").read_bytes()
    (folder / "flow.pt").write_bytes(body[: len(body) // 2])
    (folder / "campplus.onnx").write_bytes(b"no graph")
    (folder / "CosyVoice-BlankEN" / "vocab.json").write_text("{", "utf-8")
    (folder / "cosyvoice3.yaml").write_text("a: [", "utf-8")
    (folder / "spk2info.pt").write_bytes(b"PK\x03\x04x")
    tensors = torch.load(folder / "hift.pt", weights_only=True)
    torch.save({k: v.to(torch.int64) for k, v in tensors.items()}, folder / "hift.pt")
    found = {p["file"]: p["problem"] for p in look(folder, lambda name: None)["problems"]}
    assert found == {
        "flow.pt": "truncated", "campplus.onnx": "bad_onnx", "CosyVoice-BlankEN/vocab.json": "bad_tokenizer",
        "cosyvoice3.yaml": "bad_yaml", "spk2info.pt": "truncated", "hift.pt": "wrong_dtype",
    }  # fmt: skip


def test_a_wrong_shape_is_told_and_half_precision_is_seen(folder: Path) -> None:
    tensors = torch.load(folder / "llm.pt", weights_only=True)
    torch.save({k: v.to(torch.bfloat16) for k, v in tensors.items()}, folder / "llm.pt")
    assert look(folder, lambda name: None, graphs=False)["dtypes"]["llm.pt"] == "bf16"
    key = next(k for k in tensors if k.endswith("q_proj.weight"))
    torch.save({**tensors, key: tensors[key][:-1]}, folder / "llm.pt")
    (problem,) = look(folder, lambda name: None, graphs=False)["problems"]
    assert (problem["file"], problem["problem"]) == ("llm.pt", "wrong_shape") and key in problem["detail"]


def test_what_is_prepared_is_what_a_start_maps(tmp_path: Path) -> None:
    options, told = LoadOptions("int8", "bf16", steps=6), []
    files, made = convert_parts(MODEL, tmp_path, options, lambda *event: told.append(event))
    assert made == [plan.name for plan in part_plans(options).values()] and "steps6" in made
    assert all(file.is_file() for file in files)
    for name in made:
        events = [(done, total) for part, done, total in told if part == name]
        assert events[-1][0] == events[-1][1] and events == sorted(events)
    assert load_model(MODEL, tmp_path, options).converted == ()
    assert convert_parts(MODEL, tmp_path, options) == (files, [])


def test_voices_of_spk2info_are_spoken_like_the_same_voice_enrolled_here(
    engine: CosyVoice3Engine, folder: Path, paths: StatePaths
) -> None:
    torch.save(
        {"小安": saved_entry(engine), "preset": {"embedding": torch.zeros(1, 192)}}, folder / "spk2info.pt"
    )
    before = (folder / "spk2info.pt").read_bytes()
    assert taking.take_over(folder, saved_folder(paths)) == 1
    (voice,) = saved_voices(paths)
    assert (voice.name, voice.transcript, voice.engine) == ("小安", True, "cosyvoice3")
    ready = voice_for(engine, paths, voice.id, None)
    assert not isinstance(ready, str) and ready.transcript == WORDS
    own = engine.enrol(*clip(), WORDS)
    for name in ("speech_tokens", "prompt_mel", "speaker"):
        assert np.array_equal(ready.arrays[name], own.arrays[name])

    def spoken(features: Any) -> Any:
        segment = Segment(0, "你好。", 0, 3)
        return np.concatenate([*engine.synthesize(segment, features, Options(7, mode="zero_shot"), NEVER)])

    assert np.array_equal(spoken(ready), spoken(own))
    assert (folder / "spk2info.pt").read_bytes() == before  # read only
    (folder / "spk2info.pt").unlink()
    assert taking.take_over(folder, saved_folder(paths)) == 0 and saved_voices(paths) == ()


def test_saved_voices_that_are_damaged_or_run_code_never_keep_the_model_from_loading(
    engine: CosyVoice3Engine, folder: Path, tmp_path: Path
) -> None:
    entry = saved_entry(engine)
    broken = {**entry, "prompt_speech_feat": entry["prompt_speech_feat"] * float("nan")}
    torch.save({"good": entry, "broken": broken, "empty": {}}, folder / "spk2info.pt")
    assert taking.take_over(folder, tmp_path / "cache") == 1

    class Mischief:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"x": Mischief()}, folder / "spk2info.pt")
    model = load_model(folder, tmp_path / "cache", LoadOptions())
    assert model.converted and not (tmp_path / "ran").exists()


def test_the_trial_measures_and_its_report_has_no_personal_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SENTENCES", (trial.SENTENCES[1],))
    wav = tmp_path / "of Anna Muster.wav"
    soundfile.write(wav, clip()[0], clip()[1])
    told: list[Any] = []
    report = trial.try_out(
        MODEL, tmp_path / "cache", config(), wav, WORDS, lambda *e: told.append(e[0]), now=1_790_000_000.0
    )
    assert told == ["loading", "voice", "sentence"]
    (sentence,) = report["sentences"]
    assert (
        sentence["audio_seconds"] > 0.1 and sentence["first_audio_seconds"] <= sentence["synthesis_seconds"]
    )
    assert report["rtf"] > 0 and report["start"]["seconds"] > 0 and report["peak_rss_bytes"] > 100e6
    assert report["dtype"] == "fp32+fp32" and report["peak_vram_bytes"] is None
    text = json.dumps(report, ensure_ascii=False)
    personal = (str(tmp_path), str(Path.home()), "Anna", WORDS, trial.SENTENCES[0][2], MODEL.name + "/")
    assert not [word for word in personal if word in text]


@pytest.mark.parametrize(
    ("samples", "findings"),
    [
        (np.full(72_000, np.nan, np.float32), ["not_finite"]),
        (np.zeros(72_000, np.float32), ["silent"]),
        (np.ones(72_000, np.float32), ["clipped"]),
        (np.full(2400, 0.1, np.float32), ["short"]),
        (np.full(24_000 * 60, 0.1, np.float32), ["long"]),
        (np.zeros(0, np.float32), ["silent", "short"]),
        (np.full(72_000, 0.1, np.float32), []),
    ],
    ids=["nan", "silent", "clipped", "short", "long", "none", "good"],
)
def test_unsound_speech_is_found(samples: Any, findings: list[str]) -> None:
    assert trial.judge(samples, "水开了，茶再过三分钟就好。") == findings


def test_the_child_says_json_lines_and_its_errors(folder: Path, paths: StatePaths) -> None:
    told: list[Any] = []
    done = run_tool("convert", folder, paths, config(), lambda *e: told.append(e))
    assert done["voices"] == 0 and done["bytes"] > 1e6 and len(done["made"]) == 4 and told
    (folder / "llm.pt").unlink()
    with pytest.raises(CosydError) as caught:
        run_tool("convert", folder, paths, dataclasses.replace(config(), weights="bf16"))
    assert caught.value.code == "model_missing" and "llm.pt" in str(caught.value.params["file"])


def test_the_toy_graphs_are_those_that_the_goldens_were_made_with() -> None:
    for name in ("campplus.onnx", "speech_tokenizer_v3.onnx"):
        ours, kit = (hashlib.sha256((f / name).read_bytes()).digest() for f in (TOY_GRAPHS, MODEL))
        assert ours == kit


def test_every_task_of_the_tool_has_its_arguments(tmp_path: Path) -> None:
    assert set(tool.TASKS) == {"check", "convert", "random", "speak"}
    with pytest.raises(CosydError) as caught:
        read_child([sys.executable, "-m", "pipeline.engines.cosyvoice3.tool", "nonsense", "--folder", "x"])
    assert caught.value.code == "internal"


@pytest.mark.slow
def test_a_checkpoint_of_full_size_is_written_prepared_and_tried_out(
    tmp_path: Path, paths: StatePaths
) -> None:
    folder = tmp_path / "full"
    env = {"COSYD_STATE_DIR": str(paths.root), "COSYD_MODEL_DIR": str(folder), "COSYD_LANG": "en"}
    for command in (["check", "--random-weights", str(folder)], ["convert"], ["check"], ["check", "--speak"]):
        result = CliRunner().invoke(main, ["model", *command], env=env)
        assert result.exit_code in (0, 70), result.output  # 70: noise may be unsound, and is told
    (report,) = (paths.root / "reports").glob("*.json")
    found = json.loads(report.read_text("utf-8"))
    assert len(found["sentences"]) == 5 and found["peak_rss_bytes"] < 2.5e9
