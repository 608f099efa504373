"""The kept features of a voice as a file: where it lies, and its bytes looked at without trusting them. Pure.

The format is safetensors (eight bytes of length, a JSON header, numbers; never a pickle). It is read by hand
here since the package comes with the `cosyvoice` extra only, and because what comes from elsewhere must have
exactly the arrays of a voice before a worker maps it: a wrong shape or a token that the model does not know
would poison a CUDA context. The worker itself reads with safetensors (`voices.features`).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.paths import StatePaths
from pipeline.voices.registry import voice_folder

HASH_KEY = "content_hash"
"""Metadata: the SHA-256 of the clip that the features were made of."""

MAX_BYTES = 8 * 1024**2
_HEADER_BYTES = 64 * 1024
_NAMES = ("speech_tokens", "prompt_mel", "speaker")
_TOKENS = 6561
"""Codes of the FSQ speech tokenizer (3 to the power of 8)."""
_LONGEST_TOKENS = 25 * 31
_MEL_BANDS, _SPEAKER_SIZE = 80, 192


def features_path(paths: StatePaths, voice_id: str, engine: str) -> Path:
    """Where the features of one engine lie."""
    return voice_folder(paths, voice_id) / f"features-{engine}.safetensors"


def checked_features(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """`speech_tokens` int32 [n], `prompt_mel` float32 [2n, 80], `speaker` float32 [192], all finite and in
    range. Raises ValueError for anything else."""
    if len(data) > MAX_BYTES:
        raise ValueError("larger than the features of a voice")
    header, body = _split(data)
    header.pop("__metadata__", None)
    if sorted(header) != sorted(_NAMES):
        raise ValueError("other arrays than those of a voice")
    found = {name: _array(header[name], body) for name in _NAMES}
    if sum(array.nbytes for array in found.values()) != len(body):
        raise ValueError("bytes that belong to no array")
    tokens, mel, speaker = (found[name] for name in _NAMES)
    shapes = (mel.shape, speaker.shape)
    if tokens.ndim != 1 or shapes != ((2 * len(tokens), _MEL_BANDS), (_SPEAKER_SIZE,)):
        raise ValueError("arrays of another shape than those of a voice")
    if tokens.dtype != np.int32 or mel.dtype != np.float32 or speaker.dtype != np.float32:
        raise ValueError("numbers of another kind than those of a voice")
    if not 0 < len(tokens) <= _LONGEST_TOKENS or tokens.min() < 0 or tokens.max() >= _TOKENS:
        raise ValueError("speech tokens out of range")
    if not (np.isfinite(mel).all() and np.isfinite(speaker).all()):
        raise ValueError("numbers that are none")
    return found


def features_bytes(arrays: Mapping[str, np.ndarray[Any, Any]], content_hash: str) -> bytes:
    """The file for these arrays, made of the clip with that hash."""
    header: dict[str, Any] = {"__metadata__": {HASH_KEY: content_hash}}
    body = bytearray()
    # The largest alignment first, as safetensors itself lays them out.
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        begin = len(body)
        body += array.tobytes()
        kind = {"int32": "I32", "float32": "F32"}[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def metadata_hash(data: bytes) -> str:
    """The hash in the metadata, "" when there is none. Raises ValueError."""
    metadata = _split(data)[0].get("__metadata__")
    found = metadata.get(HASH_KEY) if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) < 8:
        raise ValueError("no safetensors file")
    (size,) = struct.unpack("<Q", data[:8])
    if not 0 < size <= min(_HEADER_BYTES, len(data) - 8):
        raise ValueError("no safetensors file")
    try:
        header = json.loads(data[8 : 8 + size].decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("a header that cannot be read") from None
    if not isinstance(header, dict):
        raise ValueError("a header that cannot be read")
    return header, data[8 + size :]


def _array(entry: Any, body: bytes) -> np.ndarray[Any, Any]:
    if not isinstance(entry, dict):
        raise ValueError("an entry that cannot be read")
    kind = {"I32": "<i4", "F32": "<f4"}.get(str(entry.get("dtype")))
    shape = _whole_numbers(entry.get("shape"), 1, 2)
    offsets = _whole_numbers(entry.get("data_offsets"), 2, 2)
    if kind is None or shape is None or offsets is None:
        raise ValueError("an array of another kind")
    begin, end = offsets
    count = math.prod(shape)
    if not 0 <= begin <= end <= len(body) or end - begin != 4 * count:
        raise ValueError("an array that lies outside the file")
    native = {"<i4": np.int32, "<f4": np.float32}[kind]
    return np.frombuffer(body, kind, count, begin).reshape(shape).astype(native)


def _whole_numbers(value: Any, least: int, most: int) -> list[int] | None:
    """`value` when it is a list of that many sizes, else None."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        return None
    return value if all(type(item) is int and 0 <= item < 2**40 for item in value) else None
