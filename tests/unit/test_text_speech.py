"""Taking markup out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.speech import to_speech


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\n\nText", "Title\n\nText"),
        ("a **bold** and *slanted* and ***both*** word", "a bold and slanted and both word"),
        ("__Done__ and _so on_, snake_case_name stays", "Done and so on, snake_case_name stays"),
        ("3 * 4 * 5 = 60", "3 * 4 * 5 = 60"),
        ("run `make all` now", "run make all now"),
        ("`**not bold**`", "**not bold**"),
        ("- one\n- two\n  - three\n* four", "one\ntwo\nthree\nfour"),
        ("1. one\n2. two", "1. one\n2. two"),
        ("- [x] done\n- [ ] open", "done\nopen"),
        ("> quoted\n> text", "quoted\ntext"),
        ("see [the page](https://example.com/a_(b)_c) now", "see the page now"),
        ("![a cat](cat.png) sits", "a cat sits"),
        ("<https://example.com>", "https://example.com"),
        ("他从小[h][ào]学", "他从小[h][ào]学"),
        ("before\n```bash\nrm -rf /\n```\nafter", "before\n\nafter"),
        ("before\n```\ncut off", "before\n"),
        ("a\n\n---\n\nb", "a\n\n\n\nb"),
        ("|项目|数值|\n|---|---|\n|CPU|4核|", "项目, 数值\n\nCPU, 4核"),
        ("~~old~~ new", "old new"),
        ("## 步骤\n- **加热**到180℃\n- `搅拌`5分钟", "步骤\n加热到180℃\n搅拌5分钟"),
        ("### Plan\n1. *Holds out hand* Nice", "Plan\n1. Holds out hand Nice"),
    ],
)
def test_markdown(text: str, expected: str) -> None:
    assert to_speech(text, "markdown").text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<speak>你好<break time="500ms"/>再见</speak>', "你好[pause 0.500s]再见"),
        ("A &amp; B &lt; C", "A & B < C"),
        ("这<strong>绝对</strong>可以[laughter]", "这<strong>绝对</strong>可以[laughter]"),
        ("3 < 4 and 5 > 2", "3 < 4 and 5 > 2"),
    ],
)
def test_tags(text: str, expected: str) -> None:
    assert to_speech(text, "ssml").text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 < 4 and 5 > 2, a*b*c, 2 * 3 * 4", "3 < 4 and 5 > 2, a*b*c, 2 * 3 * 4"),
        ("if a <b and c> d", "if a <b and c> d"),
        ("A &amp; B<br/>next <b>word</b>", "A & B\nnext word"),
        ("这是**重点**内容", "这是重点内容"),
        ("snake_case_name and 5_000", "snake_case_name and 5_000"),
        ("```python\nprint(1)\n```", "```python\nprint(1)\n```"),
        ('<speak>a<break strength="weak"/>b</speak>', "a[pause 0.200s]b"),
        ("<p>one</p><p>two</p>", "\none\n\ntwo\n"),
    ],
)
def test_plain_text_loses_only_what_is_plainly_markup(text: str, expected: str) -> None:
    assert to_speech(text).text == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ('<sub alias="World Wide Web Consortium">W3C</sub>!', "en", "World Wide Web Consortium!"),
        ('<say-as interpret-as="characters">AB12</say-as>', "en", "A B one two"),
        ('<say-as interpret-as="telephone">110</say-as>', "zh", "幺幺零"),
        ('<say-as interpret-as="ordinal">21</say-as>', "en", "twenty first"),
        ('<say-as interpret-as="date">today</say-as>', "en", "today"),
        ('<phoneme alphabet="x-pinyin" ph="hao4 xue2">好学</phoneme>', "zh", "[h][ào][x][ué]"),
        ('<phoneme alphabet="ipa" ph="liːd">lead</phoneme>', "en", "[L][IY0][D]"),
        ('<phoneme alphabet="x-arpabet" ph="L IY1 D">lead</phoneme>', "en", "[L][IY1][D]"),
        ('<phoneme alphabet="ipa" ph="ʕʕ">word</phoneme>', "en", "word"),
        ('<prosody rate="slow"><emphasis>so</emphasis></prosody>', "en", "so"),
        ("<sub alias='x'>unclosed", "en", "unclosed"),
        ('a<break time="90s"/>b', "en", "a[pause 10.000s]b"),
    ],
)
def test_ssml_is_honoured_where_it_is_asked_for(text: str, language: str, expected: str) -> None:
    assert to_speech(text, "ssml", language).text == expected


@given(st.text(alphabet="ab *_`#[]()<>|~-\n1.!&;/", max_size=120), st.sampled_from(["markdown", "ssml"]))
def test_each_kept_character_maps_to_the_place_it_came_from(text: str, markup: str) -> None:
    spoken = to_speech(text, markup)  # type: ignore[arg-type]
    offsets = [spoken.offset(i) for i in range(len(spoken.text))]
    assert offsets == sorted(offsets)
    for i, offset in enumerate(offsets):
        if spoken.text[i] in "ab1":
            assert text[offset] == spoken.text[i]
    # No letter is lost but in code blocks, links' addresses and tags.
    if not set(text) & set("`(<~"):
        assert [ch for ch in spoken.text if ch in "ab"] == [ch for ch in text if ch in "ab"]
