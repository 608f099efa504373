"""Sentences with numbers, dates, money and abbreviations, spoken by the built-in voice and heard by whisper.

What whisper writes in digits is put into words by the same rules before it is compared; the reference is
written by hand.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.audio.files import to_int16
from pipeline.audio.join import join
from pipeline.engines.base import Options
from pipeline.engines.builtin import BuiltinEngine
from pipeline.engines.builtin.espeak import espeak_path
from pipeline.profile import Config
from pipeline.text.segment import plan
from tests.speech import transcribe, word_error_rate

SENTENCES = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "text" / "english40.jsonl")
    .read_text("utf-8")
    .splitlines()
]
GO = threading.Event()


@pytest.fixture(scope="module")
def engine() -> BuiltinEngine:
    loaded = BuiltinEngine()
    loaded.load(Config(), GO)
    return loaded


def in_words(text: str) -> str:
    """Numbers and abbreviations read out; spellings that sound the same made one."""
    said = " ".join(s.text for s in plan(text, longest_s=25, first_short=False, language="en")).lower()
    said = re.sub(r"\b([ap]) ?\.?m\b", r"\1m", said).replace("kilometre", "kilometer")
    return re.sub(r"\b(?:mister|mr)\b", "mr", re.sub(r"\b(?:missus|mrs)\b", "mrs", said)).replace(
        " and ", " "
    )


def speak(engine: BuiltinEngine, text: str, language: str) -> np.ndarray:
    pieces = []
    for segment in plan(text, longest_s=25, first_short=False, language=language):
        chunks = list(engine.synthesize(segment, "heart", Options(seed=3), GO))
        pieces.append(to_int16(np.concatenate(chunks)))
    return join(pieces)


def test_the_reference_is_what_is_sent_to_the_voice() -> None:
    assert len(SENTENCES) == 40
    for sentence in SENTENCES:
        assert word_error_rate(in_words(sentence["spoken"]), in_words(sentence["text"])) == 0, sentence[
            "text"
        ]


def test_numbers_dates_money_and_abbreviations_are_understood(
    engine: BuiltinEngine, rounds: Callable[[int, int], int]
) -> None:
    chosen = SENTENCES[:: 40 // rounds(8, 40)]
    errors = words = 0.0
    heard = []
    for sentence in chosen:
        said = in_words(sentence["spoken"])
        got = in_words(transcribe(speak(engine, sentence["text"], "en")))
        rate = word_error_rate(said, got)
        heard.append(f"{rate:.2f} {sentence['text']} -> {got}")
        errors += rate * len(said.split())
        words += len(said.split())
    print(f"word error rate {errors / words:.3f} over {len(chosen)} sentences", *heard, sep="\n")
    assert errors / words <= 0.10, "\n".join(heard)


@pytest.mark.skipif(espeak_path() is None, reason="needs espeak-ng")
@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("会议定在2025-09-28下午3:20。", "会议定在二零二五年九月二十八日下午三点二十分。"),
        ("优惠后￥1,299.50，降了12.5%。", "优惠后一千二百九十九点五元，降了百分之十二点五。"),
        ("请拨打13800138000。", "请拨打幺三八零零幺三八零零零。"),
    ],
)
def test_chinese_numbers_sound_as_their_words(engine: BuiltinEngine, text: str, spoken: str) -> None:
    np.testing.assert_array_equal(speak(engine, text, "zh"), speak(engine, spoken, "zh"))


@pytest.mark.skipif(espeak_path() is None, reason="needs espeak-ng")
def test_a_pause_between_chinese_sentences_is_heard_as_long_as_it_was_asked_for(
    engine: BuiltinEngine,
) -> None:
    def quiet(text: str) -> float:
        """Seconds of the longest silence."""
        level = np.abs(speak(engine, text, "zh").astype(np.float32)) > 60
        edges = np.flatnonzero(level)
        return float(np.diff(edges).max()) / 24_000

    short, long = (
        quiet("今天天气很好。[pause 0.3s]我们出去走走。"),
        quiet("今天天气很好。[pause 1.3s]我们出去走走。"),
    )
    assert long - short == pytest.approx(1.0, abs=0.05)
