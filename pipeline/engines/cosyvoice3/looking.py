"""Looks into the official files one by one and says what is wrong with each; nothing is loaded to speak.

Called by `tool`. Checksums are `daemon.cli`'s part: here it is what the files hold.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pipeline.engines.base import EngineUnavailable
from pipeline.engines.cosyvoice3.official import (
    ONNX_FILES,
    TENSOR_FILES,
    Tensors,
    read_config,
    read_json,
    read_tensors,
    read_voices,
    read_yaml,
)
from pipeline.engines.cosyvoice3.tokenizer import FOLDER, TextTokenizer
from pipeline.model_files import SAVED_VOICES

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def look(folder: Path, told: Callable[[str], None], *, graphs: bool = True) -> dict[str, Any]:
    """`problems`: a list of {file, problem, detail}; `dtypes`: file -> its numbers; `voices`: how many
    spk2info.pt has. `graphs` opens the ONNX graphs too (1 GB of memory for some seconds)."""
    problems: list[dict[str, str]] = []
    dtypes: dict[str, str] = {}

    def attempt(name: str, act: Callable[[], Any]) -> Any:
        told(name)
        try:
            return act()
        except EngineUnavailable as error:
            params = error.params
            problems.append(
                {
                    "file": str(params.get("file") or name),
                    "problem": str(params.get("problem")),
                    "detail": str(params.get("detail", "")),
                }
            )
            return None

    def there(name: str) -> bool:
        return (folder / name).is_file() and (folder / name).stat().st_size > 0

    tree = attempt("cosyvoice3.yaml", lambda: read_yaml(folder))
    qwen_name = f"{FOLDER}/config.json"
    qwen = (
        attempt(qwen_name, lambda: read_json(folder / FOLDER / "config.json")) if there(qwen_name) else None
    )
    attempt(FOLDER, lambda: TextTokenizer(folder))
    tensors: dict[str, Tensors] = {}
    for name in (*TENSOR_FILES, *(n for n in ("llm.rl.pt",) if there(n))):
        found = attempt(name, lambda name=name: read_tensors(folder / name))  # type: ignore[misc]
        if found is not None:
            tensors[name], dtypes[name] = found, dtype_of(found)
    if tree is not None and qwen is not None and all(name in tensors for name in TENSOR_FILES):
        for llm in ("llm.pt", "llm.rl.pt"):
            if llm in tensors:
                parts = (tensors[llm], tensors["flow.pt"], tensors["hift.pt"])
                attempt(llm, lambda parts=parts: read_config(tree, qwen, *parts))  # type: ignore[misc]
    for name in ONNX_FILES if graphs else ():
        if there(name):
            attempt(name, lambda name=name: open_graph(folder / name))  # type: ignore[misc]
    voices: Mapping[str, Any] | None = None
    if there(SAVED_VOICES):
        voices = attempt(SAVED_VOICES, lambda: read_voices(folder / SAVED_VOICES))
    return {"problems": problems, "dtypes": dtypes, "voices": len(voices or {})}


def dtype_of(tensors: Tensors) -> str:
    """`fp32`, or `bf16 + fp32` with the one that holds most first."""
    counts: collections.Counter[str] = collections.Counter()
    for tensor in tensors.values():
        counts[NAMES.get(tensor.dtype, str(tensor.dtype))] += tensor.numel()
    return " + ".join(name for name, _ in counts.most_common())


def open_graph(path: Path) -> None:
    """Open an ONNX graph as it is, without optimising it. Raises EngineUnavailable(bad_onnx)."""
    import onnxruntime as ort

    from pipeline.engines.cosyvoice3.errors import problem

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise problem("bad_onnx", path.name, str(error).partition("\n")[0]) from error
