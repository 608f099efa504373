"""The official model directory: which files, read safely. Nothing in it is ever written or executed.

`.pt` files are unpickled with `weights_only` and mapped, so that reading them costs address space, not
memory.
"""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.engines.cosyvoice3.config import ModelConfig, flow_config, llm_config, vocoder_config
from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.schema import check, expected_flow, expected_llm, expected_vocoder
from pipeline.engines.cosyvoice3.yaml_plain import parse_plain

TENSOR_FILES = ("llm.pt", "flow.pt", "hift.pt")
SMALL_FILES = ("cosyvoice3.yaml", "CosyVoice-BlankEN/config.json")
TOKENIZER_FILES = tuple(
    f"CosyVoice-BlankEN/{n}" for n in ("vocab.json", "merges.txt", "tokenizer_config.json")
)
ONNX_FILES = ("campplus.onnx", "speech_tokenizer_v3.onnx")
REQUIRED = (*SMALL_FILES, *TOKENIZER_FILES, *TENSOR_FILES, *ONNX_FILES)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_JSON_BYTES = 64 << 20

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class OfficialModel:
    """A checked checkpoint. Tensors are mapped from the files."""

    folder: Path
    config: ModelConfig
    llm: Tensors
    flow: Tensors
    vocoder: Tensors


def missing_files(folder: Path) -> list[str]:
    """The required files that are not there or empty."""
    return [n for n in REQUIRED if not (folder / n).is_file() or (folder / n).stat().st_size == 0]


def check_folder(folder: Path) -> None:
    """Raises EngineUnavailable(no_folder | no_file | empty), naming every file that is missing."""
    if not folder.is_dir():
        raise problem("no_folder", str(folder))
    if names := missing_files(folder):
        kind = "empty" if all((folder / n).is_file() for n in names) else "no_file"
        raise problem(kind, ", ".join(names))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises EngineUnavailable(bad_json)."""
    name = "/".join(path.parts[-2:])
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise problem("bad_json", name, "too large")
        tree = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise problem("no_file", name) from error
    except (OSError, ValueError, RecursionError) as error:
        raise problem("bad_json", name, str(error)) from error
    if not isinstance(tree, dict):
        raise problem("bad_json", name, "no object")
    return tree


def read_yaml(folder: Path) -> Mapping[str, Any]:
    """cosyvoice3.yaml as plain data."""
    try:
        return parse_plain((folder / "cosyvoice3.yaml").read_text("utf-8"))
    except FileNotFoundError as error:
        raise problem("no_file", "cosyvoice3.yaml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise problem("bad_yaml", "cosyvoice3.yaml", str(error)) from error


def _unpickle(path: Path) -> Any:
    """torch.load without code execution. Raises EngineUnavailable."""
    name = path.name
    try:
        with path.open("rb") as stream:
            head = stream.read(4)
    except OSError as error:
        raise problem("no_file", name, str(error)) from error
    zipped = head == b"PK\x03\x04"
    if zipped and not zipfile.is_zipfile(path):
        raise problem("truncated", name)  # a zip has its directory at the end
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except pickle.UnpicklingError as error:
        text = str(error)
        kind = (
            "unsafe_pickle" if "Unsupported" in text or "weights_only" in text.lower() else "not_a_checkpoint"
        )
        raise problem(kind, name, text.splitlines()[0] if text else "") from error
    except MemoryError as error:
        raise problem("not_a_checkpoint", name, "claims more memory than there is") from error
    except (
        Exception
    ) as error:  # torch raises RuntimeError, EOFError, ValueError, KeyError... on damaged files
        raise problem("not_a_checkpoint", name, str(error).splitlines()[0] if str(error) else "") from error


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """A state dict from `path`: dense fp32, fp16 or bf16 tensors by name, `generator.` stripped.

    Raises EngineUnavailable: truncated, unsafe_pickle, not_a_checkpoint, wrong_dtype.
    """
    tree = _unpickle(path)
    if isinstance(tree, dict) and isinstance(tree.get("state_dict"), dict):
        tree = tree["state_dict"]
    if not isinstance(tree, dict):
        raise problem("not_a_checkpoint", path.name, f"holds {type(tree).__name__}")
    out: dict[str, torch.Tensor] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            continue  # `epoch`, `step` and the like
        if value.layout != torch.strided or value.dtype not in DTYPES:
            raise problem("wrong_dtype", path.name, f"{key} {value.dtype} {value.layout}")
        out[key.removeprefix("generator.")] = value.detach()
    if not out:
        raise problem("not_a_checkpoint", path.name, "no tensors")
    return out


def read_config(
    tree: Mapping[str, Any], qwen: Mapping[str, Any], llm: Tensors, flow: Tensors, vocoder: Tensors
) -> ModelConfig:
    """The configuration, with every needed tensor present and of the right shape."""
    shapes = [{k: tuple(v.shape) for k, v in part.items()} for part in (llm, flow, vocoder)]
    config = ModelConfig(
        llm_config(tree, qwen, shapes[0]), flow_config(tree, shapes[1]), vocoder_config(tree, shapes[2])
    )
    check("llm.pt", shapes[0], expected_llm(config.llm))
    check("flow.pt", shapes[1], expected_flow(config.flow))
    check("hift.pt", shapes[2], expected_vocoder(config.vocoder))
    if config.flow.codes < config.llm.codes:
        raise problem("wrong_shape", "flow.pt", f"{config.flow.codes} codes, llm.pt {config.llm.codes}")
    if config.flow.mel != config.vocoder.mel:
        raise problem("wrong_shape", "hift.pt", f"{config.vocoder.mel} mel bands, flow.pt {config.flow.mel}")
    return config


def open_official(folder: Path, *, reinforced: bool = False) -> OfficialModel:
    """Check and map the directory. `reinforced` takes `llm.rl.pt` in place of `llm.pt`, where it exists."""
    check_folder(folder)
    llm_name = "llm.rl.pt" if reinforced else "llm.pt"
    if not (folder / llm_name).is_file():
        raise problem("no_file", llm_name)
    tree, qwen = read_yaml(folder), read_json(folder / "CosyVoice-BlankEN/config.json")
    llm, flow, vocoder = (read_tensors(folder / n) for n in (llm_name, "flow.pt", "hift.pt"))
    return OfficialModel(folder, read_config(tree, qwen, llm, flow, vocoder), llm, flow, vocoder)


def read_voices(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """spk2info.pt: voice id -> its tensors. Raises EngineUnavailable(bad_voices) or as `read_tensors`."""
    tree = _unpickle(path)
    if not isinstance(tree, dict):
        raise problem("bad_voices", path.name, f"holds {type(tree).__name__}")
    out: dict[str, dict[str, torch.Tensor]] = {}
    for name, entry in tree.items():
        if not isinstance(name, str) or not isinstance(entry, dict):
            raise problem("bad_voices", path.name, "a voice is not a mapping")
        out[name] = {k: v for k, v in entry.items() if isinstance(k, str) and isinstance(v, torch.Tensor)}
    return out
