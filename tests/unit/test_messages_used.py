"""Every text of the catalogues is used by some code: one that nothing names is one that nobody keeps true.

A key is used when it, or what follows its section, stands in the code as a string, or fits one that is put
together there (`exit_{status}`). Sections alone (`cli.{key}`) name nothing.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from pipeline.codes import CODES
from pipeline.messages import catalogue

ROOT = Path(__file__).resolve().parents[2]
FROM_OUTSIDE = {"swap.partition": "the kind of swap, as /proc/swaps writes it"}


@cache
def named() -> tuple[frozenset[str], frozenset[str]]:
    """All strings in the code, and patterns of those that are put together from a beginning and a word."""
    words: set[str] = set()
    patterns: set[str] = set()

    def put_together(parts: list[str | None]) -> None:
        begin = parts[0] or ""
        alone = begin.endswith(".") and not "".join(filter(None, parts[1:])).strip("._")
        if re.fullmatch(r"[\w.]+", begin) and not alone:
            patterns.add("".join(r"[\w-]+" if part is None else re.escape(part) for part in parts))

    for folder in ("daemon", "pipeline", "ui"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
                elif isinstance(node, ast.JoinedStr):
                    put_together([str(v.value) if isinstance(v, ast.Constant) else None for v in node.values])
        for path in (ROOT / folder).rglob("*.js"):
            text = path.read_text("utf-8")
            words |= set(re.findall(r"[\"`]([\w.]+)[\"`]", text)) | set(re.findall(r"[\s{,(](\w+):", text))
            for template in re.findall(r"`([\w.]*\$\{[^`{}]*\}[\w.]*)`", text):
                pieces = re.split(r"\$\{[^}]*\}", template)
                put_together([part for piece in pieces for part in (piece, None)][:-1])
    return frozenset(words), frozenset(patterns)


def is_used(key: str) -> bool:
    """Whether some code can ask for the text."""
    words, patterns = named()

    def said(form: str) -> bool:
        return form in words or any(re.fullmatch(pattern, form) for pattern in patterns)

    parts = key.split(".")
    name = key.removeprefix("error.")
    reasons = [name[len(code) + 1 :] for code in CODES if name.startswith(f"{code}_")]
    return any(said(".".join(parts[n:])) for n in range(len(parts))) or (
        name != key and any(said(reason) for reason in reasons)
    )


def test_every_text_is_used_somewhere() -> None:
    unused = [key for key in catalogue("en") if not is_used(key) and key not in FROM_OUTSIDE]
    assert unused == [], "no code names these texts: use them, or take them out of both catalogues"


def test_a_text_that_nothing_names_would_be_noticed() -> None:
    assert not is_used("page.nobody_ever_" + "asked_for_this")
    assert not is_used("error.storage_full_" + "because_of_the_moon")
    assert (
        is_used("cli.exit_75") and is_used("error.storage_full_gone") and is_used("page.manner.hint_convert")
    )
