"""What can be wrong with model files, as one exception with a cure.

`problem` is a key of [cosyvoice3] in the message catalogues; `problem_text` renders it for people. Codes:
`model_missing` when something must be fetched again, `engine_failed` when the file is there but cannot be
used.
"""

from __future__ import annotations

from typing import Any

from pipeline.engines.base import EngineUnavailable
from pipeline.messages import Language, render

ENGINE = "cosyvoice3"

MISSING = frozenset({"no_folder", "no_file", "truncated", "empty"})
"""Problems that a new download cures: their code is `model_missing`."""

PROBLEMS = MISSING | {
    "unsafe_pickle",
    "not_a_checkpoint",
    "missing_tensor",
    "wrong_shape",
    "wrong_dtype",
    "not_finite",
    "bad_yaml",
    "bad_json",
    "bad_value",
    "bad_tokenizer",
    "bad_onnx",
    "bad_voices",
    "cannot_write",
    "no_torch",
    "changed_while_reading",
    "self_test",
}


def problem(kind: str, file: str, detail: str = "", **params: Any) -> EngineUnavailable:
    """The exception for one `kind` of PROBLEMS with `file`. `detail` is technical and stays English."""
    if kind not in PROBLEMS:
        raise ValueError(f"unknown problem {kind!r}")
    code = "model_missing" if kind in MISSING else "engine_failed"
    reason = render(f"cosyvoice3.{kind}", "en", {"file": file, "detail": detail, **params})
    return EngineUnavailable(
        code, engine=ENGINE, problem=kind, file=file, detail=detail[:500], reason=reason, **params
    )


def problem_text(error: EngineUnavailable, language: Language) -> str:
    """What is wrong and what to do, in `language`."""
    return render(f"cosyvoice3.{error.params.get('problem', '')}", language, error.params)
