"""What is said in a recording, written down for correction: over HTTP and by `cosyd voices transcribe`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile

from pipeline.jobs import SAMPLE_RATE
from tests.integration.rig import Rig
from tests.integration.test_cli import cosyd
from tests.speech import spoken_by_the_built_in_voice, whisper_folder, word_error_rate

FIRST = "The old house at the edge of the village had been empty for many years."
SECOND = "Every evening somebody played a slow song by the open kitchen window."


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    settings = {"asr.model": str(whisper_folder())}
    with Rig(tmp_path_factory.mktemp("words"), settings, engines=()) as made:
        yield made


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A file with both sentences, and the second at which the second one begins."""
    first, second = (spoken_by_the_built_in_voice(text) for text in (FIRST, SECOND))
    path = tmp_path_factory.mktemp("clip") / "both.flac"
    soundfile.write(path, [*first, *second], SAMPLE_RATE)
    return path, len(first) / SAMPLE_RATE


def ask(rig: Rig, file: Path | None = None, **fields: str) -> Any:
    files = {"audio": (file.name, file.read_bytes(), "audio/flac")} if file else {"other": ("x", b"", "a/b")}
    return rig.http.post(
        "/api/voices/transcribe", data=fields, files=files, headers={"Origin": rig.url}, timeout=300
    )


def test_a_recording_is_written_down_whole_or_in_part(rig: Rig, clip: tuple[Path, float]) -> None:
    path, split_s = clip
    whole = ask(rig, path)
    assert whole.status_code == 200, whole.text
    assert whole.json()["language"] == "en"
    assert word_error_rate(f"{FIRST} {SECOND}", whole.json()["text"]) <= 0.15
    part = ask(rig, path, start=f"{split_s:.2f}", end="30", language="en")
    assert word_error_rate(SECOND, part.json()["text"]) <= 0.15


def test_the_command_writes_down_the_same(rig: Rig, clip: tuple[Path, float]) -> None:
    words = ["voices", "transcribe", str(clip[0]), "--state", str(rig.paths.root)]
    plain, program = cosyd(*words), cosyd(*words, "--json")
    assert plain.returncode == program.returncode == 0, plain.stderr + program.stderr
    found = json.loads(program.stdout)
    assert found["language"] == "en" and plain.stdout.decode().strip() == found["text"]
    assert word_error_rate(f"{FIRST} {SECOND}", found["text"]) <= 0.15


@pytest.mark.parametrize(
    ("content", "fields", "status", "code"),
    [
        (b"no sound at all, only words " * 40, {}, 400, "bad_audio"),
        (None, {}, 400, "bad_audio"),
        (b"", {"upload": "../../etc/passwd"}, 404, "not_found"),
        ("clip", {"start": "900", "end": "901"}, 400, "bad_audio"),
        ("clip", {"start": "x"}, 400, "bad_value"),
        ("clip", {"language": "zh"}, 400, "unsupported_mode"),
    ],
)
def test_what_cannot_be_written_down_is_said_with_its_reason(
    rig: Rig,
    clip: tuple[Path, float],
    tmp_path: Path,
    content: Any,
    fields: dict[str, str],
    status: int,
    code: str,
) -> None:
    path = clip[0] if content == "clip" else None
    if isinstance(content, bytes) and content:
        path = tmp_path / "a.flac"
        path.write_bytes(content)
    answer = ask(rig, path, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert "Traceback" not in answer.text


def test_without_a_model_both_say_where_it_belongs(tmp_path: Path, clip: tuple[Path, float]) -> None:
    whisper_folder()
    with Rig(tmp_path, engines=()) as bare:
        answer = ask(bare, clip[0])
        assert answer.json()["error"]["code"] == "model_missing"
        assert str(bare.paths.root / "models" / "whisper") in answer.text
        done = cosyd("voices", "transcribe", str(clip[0]), "--state", str(bare.paths.root))
        assert done.returncode == 75 and b"asr.model" in done.stderr
