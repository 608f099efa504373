"""Runs by language."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.language import detect, primary, script_of, split_runs


@given(st.text(max_size=200), st.sampled_from(["auto", "zh", "en", "ja", "de", "ru", "yue", "x"]))
def test_runs_are_the_whole_text_and_neighbours_differ(text: str, language: str) -> None:
    runs = split_runs(text, language)
    assert "".join(run.text for run in runs) == text
    assert all(text[run.start : run.end] == run.text for run in runs)
    assert all(a.language != b.language and a.end == b.start for a, b in pairwise(runs))


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Hello there.", "auto", [("Hello there.", "en")]),
        ("你好。", "auto", [("你好。", "zh")]),
        ("我用iPhone，很好。", "auto", [("我用", "zh"), ("iPhone，", "en"), ("很好。", "zh")]),
        ("存储256GB。", "zh", [("存储256", "zh"), ("GB。", "en")]),
        ("GPT 4 Turbo", "auto", [("GPT 4 Turbo", "en")]),
        ("他有3个", "auto", [("他有3个", "zh")]),
        ("50%", "zh", [("50%", "zh")]),
        ("50%", "auto", [("50%", "en")]),
        ("明日は東京です", "auto", [("明日は東京です", "ja")]),
        ("東京", "ja", [("東京", "ja")]),
        ("오늘 3시에 봐요.", "auto", [("오늘 3시에 봐요.", "ko")]),
        ("Привет, мир", "auto", [("Привет, мир", "ru")]),
        ("Привіт, їжак", "auto", [("Привіт, їжак", "uk")]),
        ("Für 10 Äpfel", "de", [("Für 10 Äpfel", "de")]),
        ("Bonjour 世界", "fr-CA", [("Bonjour ", "fr"), ("世界", "zh")]),
        ("hello", "zh", [("hello", "en")]),
        ("你最叻", "yue", [("你最叻", "yue")]),
        ("他说“Hello”吗", "auto", [("他说", "zh"), ("“Hello”", "en"), ("吗", "zh")]),
        ("он сказал (yes)", "auto", [("он сказал ", "ru"), ("(yes)", "en")]),
        ("", "auto", []),
    ],
)
def test_table(text: str, language: str, expected: list[tuple[str, str]]) -> None:
    assert [(run.text, run.language) for run in split_runs(text, language)] == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("我用 Visual Studio Code 1.9", "auto", "en"),
        ("今天我用 iPhone 拍了很多照片", "auto", "zh"),
        ("明日は東京で会議があります", "auto", "ja"),
        ("123", "auto", "en"),
        ("123", "zh-TW", "zh"),
    ],
)
def test_most_of_the_text_decides(text: str, language: str, expected: str) -> None:
    assert detect(text, language) == expected


def test_tags_and_scripts() -> None:
    assert [primary(tag) for tag in ("auto", "zh-Hant-TW", "cmn", "PT_br")] == ["", "zh", "zh", "pt"]
    assert [script_of(ch) for ch in "aé字かㄅ한ж5。👍Ａ"] == [
        "latin", "latin", "han", "kana", "han", "hangul", "cyrillic", "", "", "", "latin",
    ]  # fmt: skip
