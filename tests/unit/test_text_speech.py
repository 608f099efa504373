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
        ('<speak>你好<break time="500ms"/>再见</speak>', "你好, 再见"),
        ("A &amp; B &lt; C", "A & B < C"),
        ("这<strong>绝对</strong>可以[laughter]", "这<strong>绝对</strong>可以[laughter]"),
        ("3 < 4 and 5 > 2", "3 < 4 and 5 > 2"),
    ],
)
def test_tags(text: str, expected: str) -> None:
    assert to_speech(text, "ssml").text == expected


def test_plain_text_is_left_alone() -> None:
    assert to_speech("# *a* <b> `c`").text == "# *a* <b> `c`"


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
