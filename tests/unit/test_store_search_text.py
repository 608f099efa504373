"""Text to search words and queries to FTS5 expressions."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.store.cjk import MAX_TERMS, match_expression, search_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("你好，世界", "你好 好 世界 界"),
        ("Hello, World!", "hello world"),
        ("我用iPhone15拍照", "我用 用 iphone15 拍照 照"),
        ("ＡＢＣ　１２３", "abc 123"),
        ("ｶﾀｶﾅ", "カタ タカ カナ ナ"),
        ("ひらがな", "ひら らが がな な"),
        ("한국어 말", "한국 국어 어 말"),
        ("Straße", "strasse"),
        ("𠮷野家", "𠮷野 野家 家"),
        ("", ""),
        ("。，！", ""),
    ],
)
def test_cjk_characters_are_indexed_in_pairs(text: str, words: str) -> None:
    assert search_text(text) == words


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("你好", '"你好"'),
        ("好", '"好" *'),
        ("今天天气", '"今天 天天 天气"'),
        ("hel", '"hel" *'),
        ("你好 wor", '"你好" AND "wor" *'),
        ("iPhone手机", '"iphone" * AND "手机"'),
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


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_query_is_a_syntax_error(query: str) -> None:
    expression = match_expression(query)
    if expression is not None:
        with closing(sqlite3.connect(":memory:")) as conn:
            conn.execute(
                "CREATE VIRTUAL TABLE t USING fts5 (words, tokenize = 'unicode61 remove_diacritics 2')"
            )
            conn.execute("SELECT rowid FROM t WHERE t MATCH ?", (expression,)).fetchall()


@settings(deadline=None)
@given(
    st.text(alphabet="天气好あ한，。 ", max_size=30),
    st.text(alphabet="天气好あ한， ", min_size=1, max_size=6),
)
def test_a_query_finds_exactly_the_texts_that_have_its_runs(text: str, query: str) -> None:
    """Against plain substring search: no run is missed, none is made up."""
    expression = match_expression(query)
    runs = query.replace("，", " ").split()
    assert (expression is None) == (not runs)
    if expression is None:
        return
    with closing(sqlite3.connect(":memory:")) as conn:
        conn.execute("CREATE VIRTUAL TABLE t USING fts5 (words, tokenize = 'unicode61 remove_diacritics 2')")
        conn.execute("INSERT INTO t VALUES (?)", (search_text(text),))
        found = conn.execute("SELECT count(*) FROM t WHERE t MATCH ?", (expression,)).fetchone()[0]
    assert found == int(all(run in text for run in runs))


@settings(deadline=None)
@given(st.text(max_size=60))
def test_every_text_finds_itself(text: str) -> None:
    expression = match_expression(text)
    if expression is None:
        return
    with closing(sqlite3.connect(":memory:")) as conn:
        conn.execute("CREATE VIRTUAL TABLE t USING fts5 (words, tokenize = 'unicode61 remove_diacritics 2')")
        conn.execute("INSERT INTO t VALUES (?)", (search_text(text),))
        assert conn.execute("SELECT count(*) FROM t WHERE t MATCH ?", (expression,)).fetchone()[0] == 1
