"""Cloned voices: consent, the row and the clip, what an upload becomes, the mode that is chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

from daemon.cli.main import main
from pipeline.codes import CosydError
from pipeline.jobs import JobRequest
from pipeline.model_files import NEEDED, missing_files, model_folder
from pipeline.paths import StatePaths
from pipeline.store.db import connect
from pipeline.store.ensure import ensure_schema
from pipeline.voices.catalogue import Voice, ready_made
from pipeline.voices.choose import fit_mode
from pipeline.voices.registry import add_voice, all_voices, clip_path, parse_new_voice, remove_voice

RATE, NOW = 24_000, 1_700_000_000.0
GOOD = {"name": "Anna", "consent": "own"}


def tone(seconds: float, rate: int = RATE) -> Any:
    return (0.3 * np.sin(2 * np.pi * 220 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    found = StatePaths.at(tmp_path / "state", {})
    found.ensure()
    ensure_schema(found)
    return found


@pytest.fixture
def conn(paths: StatePaths) -> Iterator[Any]:
    made = connect(paths.database, "accept")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"consent": ""}, "consent"),
        ({"consent": None}, "consent"),
        ({"consent": "yes"}, "consent"),
        ({"consent": "agreed"}, "person"),
        ({"name": " "}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"transcript": "x" * 1001}, "transcript"),
    ],
)
def test_no_voice_without_a_name_and_a_consent(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(CosydError) as refused:
        parse_new_voice(GOOD | fields, NOW)
    assert (refused.value.code, refused.value.params["field"]) == ("bad_value", field)


def test_a_voice_is_listed_with_its_clip_and_leaves_nothing(paths: StatePaths, conn: Any) -> None:
    new = parse_new_voice({"name": "Zoe\u0301", "consent": "agreed", "person": "Zoé B."}, NOW)
    voice = add_voice(conn, paths, new, tone(2), RATE, NOW)
    assert (voice.name, voice.transcript) == ("Zoé", False)
    assert voice in all_voices(conn, {})
    row = conn.execute("SELECT * FROM voices").fetchone()
    assert json.loads(row["consent"]) == {
        "choice": "agreed", "person": "Zoé B.", "at": "2023-11-14T22:13:20.000000Z",
    }  # fmt: skip
    audio, rate = soundfile.read(clip_path(paths, voice.id), dtype="float32")
    assert rate == RATE and np.abs(audio - tone(2)).max() < 1e-4
    assert remove_voice(conn, paths, voice.id, NOW)
    assert not remove_voice(conn, paths, voice.id, NOW)
    assert voice.id not in {v.id for v in all_voices(conn, {})} and list(paths.voices.iterdir()) == []
    with pytest.raises(CosydError):
        clip_path(paths, "../outputs")


def ready() -> None:
    """The model is there."""


CLONED = Voice("v-1", "Anna", "cosyvoice3", (), builtin=False, transcript=True)
SILENT = Voice("v-2", "Anna", "cosyvoice3", (), builtin=False)
HEART = Voice("heart", "Heart", "builtin", ("en",))


@pytest.mark.parametrize(
    ("voice", "mode", "instruct", "chosen"),
    [
        (CLONED, "builtin", None, "zero_shot"),
        (CLONED, "builtin", "happily", "instruct"),
        (CLONED, "cross_lingual", None, "cross_lingual"),
        (SILENT, "builtin", None, "cross_lingual"),
        (SILENT, "zero_shot", None, "cross_lingual"),
        (SILENT, "builtin", "happily", "instruct"),
        (HEART, "builtin", "happily", "builtin"),
    ],
)
def test_the_mode_follows_from_voice_and_style(voice: Voice, mode: Any, instruct: Any, chosen: str) -> None:
    fitted = fit_mode(JobRequest("hi", voice.id, mode=mode, instruct=instruct), voice, ready)
    assert (fitted.mode, fitted.instruct) == (chosen, instruct if chosen == "instruct" else None)


def test_what_cannot_be_is_refused() -> None:
    for voice, mode, code in (
        (HEART, "zero_shot", "unsupported_mode"),
        (CLONED, "instruct", "bad_value"),
    ):
        with pytest.raises(CosydError) as refused:
            fit_mode(JobRequest("hi", voice.id, mode=mode), voice, ready)  # type: ignore[arg-type]
        assert refused.value.code == code


def test_without_espeak_words_that_nobody_can_read_are_refused_before_the_job_is_taken() -> None:
    bare = ready_made({}, espeak=False)[0]
    whole = ready_made({}, espeak=True)[0]
    assert fit_mode(JobRequest("Café at 5 € ☃", bare.id), bare, ready).mode == "builtin"
    for text, language in (("你好", "zh"), ("We met in 北京 twice.", "zh"), ("Guten Tag", "de")):
        request = JobRequest(text, bare.id, language=language)
        assert fit_mode(request, whole, ready).mode == "builtin"
        with pytest.raises(CosydError) as refused:
            fit_mode(request, bare, ready)
        assert refused.value.params == {"mode": "builtin", "language": language, "reason": "needs_espeak"}


def test_missing_model_files_are_named(tmp_path: Path) -> None:
    folder = model_folder({}, tmp_path)
    assert missing_files(folder) == NEEDED
    for name in NEEDED[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / NEEDED[2]).write_bytes(b"")
    assert missing_files(folder) == (NEEDED[0], NEEDED[2])


def test_model_check_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "llm.pt").write_bytes(b"x")
    done = CliRunner().invoke(main, ["model", "check", str(tmp_path), "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 75
    assert (found["whole"], found["missing"]) == (False, [name for name in NEEDED if name != "llm.pt"])
