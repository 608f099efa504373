"""Where the CosyVoice model lies and whether it is whole; cheap, for processes that never load it.

File names from the official directory. Nothing is opened: the engine says more when it loads.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.codes import CosydError
from pipeline.paths import default_state_root

ENGINE = "cosyvoice3"
"""The engine that speaks cloned voices."""

MODEL_NAME = "Fun-CosyVoice3-0.5B"
TOKENIZER_FOLDER = "CosyVoice-BlankEN"
LANGUAGES = ("zh", "en", "ja", "ko", "de", "es", "fr", "it", "ru", "yue")
"""What the model speaks, as its authors say."""

NEEDED = (
    "cosyvoice3.yaml",
    "llm.pt",
    "flow.pt",
    "hift.pt",
    "campplus.onnx",
    "speech_tokenizer_v3.onnx",
    f"{TOKENIZER_FOLDER}/config.json",
    f"{TOKENIZER_FOLDER}/vocab.json",
    f"{TOKENIZER_FOLDER}/merges.txt",
    f"{TOKENIZER_FOLDER}/tokenizer_config.json",
)
"""What speaking and adding a voice need, and nothing else of the 9 GB that are offered."""

REINFORCED = "llm.rl.pt"
"""The other language model, wanted where the configuration says so."""

SAVED_VOICES = "spk2info.pt"
OPTIONAL = (SAVED_VOICES,)
"""Taken along where it is there: voices that somebody kept with upstream's own tools."""

SAVED_INDEX = "voices.json"
"""Beside the converted weights: the voices of spk2info.pt, taken over."""

RECORD = "cosyd-files.json"
"""Beside the files: sizes and checksums as they were fetched."""


def model_folder(environ: Mapping[str, str] = os.environ, state: Path | None = None) -> Path:
    """The official directory: COSYD_MODEL_DIR, else `models/` in the state folder."""
    if given := environ.get("COSYD_MODEL_DIR"):
        return Path(given)
    return (state or default_state_root(environ)) / "models" / MODEL_NAME


def missing_files(folder: Path) -> tuple[str, ...]:
    """Needed files that are not there or empty."""

    def whole(name: str) -> bool:
        try:
            return (folder / name).stat().st_size > 0
        except OSError:
            return False

    return tuple(name for name in NEEDED if not whole(name))


def missing_packages() -> tuple[str, ...]:
    """Python packages that the engine needs and that are not here; none is imported."""
    names = ("torch", "tokenizers", "safetensors")
    return tuple(name for name in names if importlib.util.find_spec(name) is None)


def model_ready(state: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `require_model` would pass."""
    return not missing_packages() and not missing_files(model_folder(environ, state))


def require_model(state: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Raise CosydError(model_missing) with reason no_torch or no_files, without importing torch."""
    if missing_packages():
        raise CosydError("model_missing", reason="no_torch")
    if missing := missing_files(model_folder(environ, state)):
        raise CosydError("model_missing", reason="no_files", missing=", ".join(missing))
