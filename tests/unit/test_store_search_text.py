"""Text to search words and queries to FTS5 expressions."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.cjk import MAX_TERMS, match_expression, search_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("你好，世界", "你 好 世 界"),
        ("Hello, World!", "hello world"),
        ("我用iPhone15拍照", "我 用 iphone15 拍 照"),
        ("ＡＢＣ　１２３", "abc 123"),
        ("ｶﾀｶﾅ", "カ タ カ ナ"),
        ("ひらがな", "ひ ら が な"),
        ("한국어 말", "한 국 어 말"),
        ("Straße", "strasse"),
        ("𠮷野家", "𠮷 野 家"),
        ("", ""),
        ("。，！", ""),
    ],
)
def test_each_cjk_character_is_a_word(text: str, words: str) -> None:
    assert search_text(text) == words


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("你好", '"你 好"'),
        ("hel", '"hel" *'),
        ("你好 wor", '"你 好" AND "wor" *'),
        ("iPhone手机", '"iphone" * AND "手 机"'),
        ('say "hi" OR NOT', '"say" * AND "hi" * AND "or" * AND "not" *'),
        ("text:foo*", '"text" * AND "foo" *'),
        ("a a a", '"a" *'),
        ("!?。", None),
        ("", None),
        ("\x00\u0301", None),
    ],
)
def test_queries_become_quoted_terms(query: str, expression: str | None) -> None:
    assert match_expression(query) == expression


def test_a_long_query_is_bounded() -> None:
    expression = match_expression(" ".join(f"w{i}" for i in range(1000)))
    assert expression is not None and expression.count(" AND ") == MAX_TERMS - 1


@given(st.text(max_size=200))
def test_no_query_is_a_syntax_error(query: str) -> None:
    expression = match_expression(query)
    if expression is not None:
        with closing(sqlite3.connect(":memory:")) as conn:
            conn.execute(
                "CREATE VIRTUAL TABLE t USING fts5 (words, tokenize = 'unicode61 remove_diacritics 2')"
            )
            conn.execute("SELECT rowid FROM t WHERE t MATCH ?", (expression,)).fetchall()


@given(st.text(max_size=60), st.data())
def test_a_run_of_a_text_is_found_in_it(text: str, data: st.DataObject) -> None:
    """Any piece that starts where a word does: whole CJK characters, or words cut at their end."""
    words = search_text(text).split(" ")
    start = data.draw(st.integers(0, len(words)))
    expression = match_expression(" ".join(words[start:]))
    if expression is None:
        return
    with closing(sqlite3.connect(":memory:")) as conn:
        conn.execute("CREATE VIRTUAL TABLE t USING fts5 (words, tokenize = 'unicode61 remove_diacritics 2')")
        conn.execute("INSERT INTO t VALUES (?)", (search_text(text),))
        assert conn.execute("SELECT count(*) FROM t WHERE t MATCH ?", (expression,)).fetchone()[0] == 1
