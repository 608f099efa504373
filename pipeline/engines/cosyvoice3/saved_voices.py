"""Voices of an existing `spk2info.pt`, taken over so that they are listed and spoken; the file is only read.

Upstream keeps a voice as token ids, mel and speaker vector. They become `voices.json` and one safetensors
file each beside the converted weights, in the form that enrolment gives; `pipeline.voices.saved` reads them
without torch. Preset speakers that are a single vector are left out: version 3 has no mode for them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from pipeline.engines.base import EngineUnavailable
from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.official import read_voices
from pipeline.engines.cosyvoice3.tokenizer import TextTokenizer
from pipeline.model_files import SAVED_INDEX, SAVED_VOICES

log = logging.getLogger(__name__)

TOKENS = ("llm_prompt_speech_token", "flow_prompt_speech_token")
SPEAKER = ("llm_embedding", "flow_embedding")


def voice_id_of(name: str) -> str:
    """A stable id for whatever name upstream's user gave."""
    return "saved-" + hashlib.sha256(name.encode()).hexdigest()[:12]


def voice_arrays(
    name: str, entry: dict[str, torch.Tensor], ratio: int = 2
) -> dict[str, np.ndarray[Any, Any]]:
    """`speech_tokens` int32 [n], `prompt_mel` float32 [ratio n, mel], `speaker` float32 [192]. Raises
    EngineUnavailable(bad_voices)."""
    tokens = next((entry[k] for k in TOKENS if k in entry), None)
    speaker = next((entry[k] for k in SPEAKER if k in entry), None)
    mel = entry.get("prompt_speech_feat")
    if tokens is None or speaker is None or mel is None:
        raise problem("bad_voices", SAVED_VOICES, f"{name}: no prompt")
    ids = tokens.reshape(-1).to(torch.int32).numpy()
    frames = mel.reshape(-1, mel.shape[-1]).float().numpy()
    n = min(len(ids), len(frames) // ratio)
    vector = speaker.reshape(-1).float().numpy()
    if n == 0 or not (np.isfinite(frames).all() and np.isfinite(vector).all()) or int(ids.min()) < 0:
        raise problem("bad_voices", SAVED_VOICES, f"{name}: out of range")
    return {
        "speech_tokens": np.ascontiguousarray(ids[:n]),
        "prompt_mel": np.ascontiguousarray(frames[: ratio * n]),
        "speaker": np.ascontiguousarray(vector),
    }


def transcript_of(tokenizer: TextTokenizer, entry: dict[str, torch.Tensor]) -> str:
    """The words of the prompt: its ids after the system sentence. "" when there are none."""
    found = entry.get("prompt_text")
    ids = [int(i) for i in found.reshape(-1)] if found is not None else []
    if tokenizer.end_of_prompt in ids:
        ids = ids[ids.index(tokenizer.end_of_prompt) + 1 :]
    return tokenizer.decode(ids).strip()


def take_over(folder: Path, cache: Path, tokenizer: TextTokenizer | None = None) -> int:
    """Bring the taken-over voices in line with `spk2info.pt`; how many there are. Raises
    EngineUnavailable(bad_voices, unsafe_pickle, ..., cannot_write)."""
    source, index = folder / SAVED_VOICES, cache / SAVED_INDEX
    try:
        stat = source.stat()
    except FileNotFoundError:
        index.unlink(missing_ok=True)
        return 0
    key = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    if (known := _known(index, key)) is not None:
        return known
    tokenizer = tokenizer or TextTokenizer(folder)
    voices = []
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for name, entry in read_voices(source).items():
            try:
                arrays = voice_arrays(name, entry)
            except EngineUnavailable as error:
                log.warning("a voice of %s is left out: %s", SAVED_VOICES, error.params.get("detail"))
                continue
            voice_id = voice_id_of(name)
            data = save(arrays)
            _write(cache / f"{voice_id}.safetensors", data)
            voices.append(
                {
                    "id": voice_id,
                    "name": name,
                    "transcript": transcript_of(tokenizer, entry),
                    "content_hash": hashlib.sha256(data).hexdigest(),
                }
            )
        _write(index, json.dumps({"key": key, "voices": voices}, ensure_ascii=False, indent=1).encode())
    except OSError as error:
        raise problem("cannot_write", str(cache), error.strerror or str(error)) from error
    for old in cache.glob("saved-*.safetensors"):
        if old.stem not in {voice["id"] for voice in voices}:
            old.unlink(missing_ok=True)
    return len(voices)


def _known(index: Path, key: list[int]) -> int | None:
    try:
        found = json.loads(index.read_text("utf-8"))
        return len(found["voices"]) if found["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
