"""Text to ids: Qwen2's byte-level BPE with CosyVoice 3's special tokens, through the `tokenizers` library.

Ids come from the files and the order of registration; none is written in code. Specials are matched before
the NFC normalisation, as upstream does. Called by `prompts`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.special_tokens import ADDITIONAL, END_OF_PROMPT

FOLDER = "CosyVoice-BlankEN"
MAX_BYTES = 64 << 20

# Qwen2's split, from its published tokenizer.json.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """`encode` and `decode`; `end_of_prompt` is the id that must stand in every prompt."""

    def __init__(self, folder: Path, rows: int | None = None) -> None:
        """`folder` is the official directory; `rows` the text table's size. Raises EngineUnavailable."""
        self._tokenizer = _build(folder / FOLDER)
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if rows is not None and size > rows:
            raise problem("bad_tokenizer", FOLDER, f"{size} tokens, the model has {rows} rows")
        found = self._tokenizer.token_to_id(END_OF_PROMPT)
        if found is None:
            raise problem("bad_tokenizer", FOLDER, f"no {END_OF_PROMPT}")
        self.end_of_prompt: int = found
        self._special = frozenset(
            i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of `text`; special tokens in it are recognised."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: tuple[int, ...] | list[int]) -> str:
        """Text without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens."""
        return self._special


def _read(path: Path) -> str:
    name = f"{FOLDER}/{path.name}"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise problem("bad_tokenizer", name, "too large")
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise problem("no_file", name) from error
    except (OSError, UnicodeDecodeError) as error:
        raise problem("bad_tokenizer", name, str(error)) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise problem("bad_tokenizer", f"{FOLDER}/{path.name}", str(error)) from error
    if not isinstance(tree, dict):
        raise problem("bad_tokenizer", f"{FOLDER}/{path.name}", "no object")
    return tree


def _build(folder: Path) -> Tokenizer:
    vocabulary = _json(folder / "vocab.json")
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in vocabulary.values()):
        raise problem("bad_tokenizer", f"{FOLDER}/vocab.json", "an id is no number")
    merges = []
    for line in _read(folder / "merges.txt").split("\n"):
        if line and not line.startswith("#version"):
            left, _, right = line.partition(" ")
            merges.append((left, right))
    try:
        tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=False, byte_fallback=False))
    except Exception as error:  # tokenizers raises bare Exception for merges that do not fit
        raise problem("bad_tokenizer", f"{FOLDER}/merges.txt", str(error)) from error
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    known = _json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    names = [known[i]["content"] for i in sorted(known, key=_number)] if isinstance(known, dict) else []
    if not all(isinstance(n, str) and n for n in names):
        raise problem("bad_tokenizer", f"{FOLDER}/tokenizer_config.json", "added_tokens_decoder")
    ordered = dict.fromkeys([*names, *ADDITIONAL])
    tokenizer.add_special_tokens([AddedToken(n, normalized=False, special=True) for n in ordered])
    return tokenizer


def _number(key: str) -> int:
    return int(key) if key.isdigit() else 0
