"""Where the speech recognition model is, and what is missing. Imports nothing of it.

The folder is `asr.model` of the configuration, else `<state>/models/whisper`: a CTranslate2 conversion of
any Whisper, as faster-whisper itself loads it (config.json, model.bin, tokenizer.json).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.profile import Config

NEEDED = ("config.json", "model.bin", "tokenizer.json")


def hearing_folder(config: Config, paths: StatePaths) -> Path:
    """The folder that is looked into."""
    return Path(config.asr.model).expanduser() if config.asr.model else paths.root / "models" / "whisper"


def require_hearing(config: Config, paths: StatePaths) -> Path:
    """The model's folder. Raises CosydError(model_missing) with `asr_not_installed` or `asr_no_model`."""
    folder = hearing_folder(config, paths)
    if importlib.util.find_spec("faster_whisper") is None:
        raise CosydError("model_missing", reason="asr_not_installed")
    if not all((folder / name).is_file() for name in NEEDED):
        raise CosydError("model_missing", reason="asr_no_model", folder=str(folder), files=", ".join(NEEDED))
    return folder


def can_hear(config: Config, paths: StatePaths) -> bool:
    """Whether recordings can be written down here."""
    try:
        require_hearing(config, paths)
    except CosydError:
        return False
    return True
