"""Reference audio to the arrays of a voice: speech tokens, prompt mel, speaker vector.

The two ONNX graphs (about 1 GB together) are opened here, run on the CPU and closed again; nothing of them
stays. Once for each voice in its life: the arrays are kept.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.codes import CosydError
from pipeline.engines.cosyvoice3.errors import problem
from pipeline.engines.cosyvoice3.features import (
    RATE_16K,
    RATE_24K,
    flow_mel,
    kaldi_fbank,
    resample,
    whisper_mel,
)

TOKENIZER, SPEAKER = "speech_tokenizer_v3.onnx", "campplus.onnx"
MIN_SECONDS, MAX_SECONDS = 0.5, 30.0
MIN_RATE = 16_000
SILENT_RMS = 1e-4
"""-80 dB: below this there is nothing to learn a voice from."""


@dataclass(frozen=True, slots=True)
class VoiceArrays:
    """`tokens` int32 [n], `mel` float32 [2n, 80], `speaker` float32 [192]."""

    tokens: npt.NDArray[np.int32]
    mel: npt.NDArray[np.float32]
    speaker: npt.NDArray[np.float32]

    def to_mapping(self) -> dict[str, npt.NDArray[Any]]:
        """The form that VoiceFeatures and safetensors hold."""
        return {"speech_tokens": self.tokens, "prompt_mel": self.mel, "speaker": self.speaker}


def check_audio(
    audio: npt.NDArray[Any], rate: int, max_seconds: float = MAX_SECONDS
) -> npt.NDArray[np.float32]:
    """The audio as mono float32, or CosydError(bad_audio) with a reason: empty, rate, short, long, silent,
    broken."""
    audio = np.asarray(audio, np.float32)
    if audio.ndim == 2:
        audio = audio.mean(axis=0 if audio.shape[0] < audio.shape[1] else 1)
    if audio.ndim != 1 or not len(audio):
        raise CosydError("bad_audio", reason="empty")
    if not np.isfinite(audio).all():
        raise CosydError("bad_audio", reason="broken")
    if rate < MIN_RATE:
        raise CosydError("bad_audio", reason="rate", value=rate, limit=MIN_RATE)
    seconds = len(audio) / rate
    limit = min(max_seconds, MAX_SECONDS)
    if seconds > limit + 0.05:
        raise CosydError("bad_audio", reason="long", value=round(seconds, 1), limit=limit)
    if seconds < MIN_SECONDS:
        raise CosydError("bad_audio", reason="short", value=round(seconds, 2), limit=MIN_SECONDS)
    if float(np.sqrt(np.mean(np.square(audio, dtype=np.float64)))) < SILENT_RMS:
        raise CosydError("bad_audio", reason="silent")
    return np.clip(audio, -1.0, 1.0)


def _run(path: Path, inputs: list[npt.NDArray[Any]], threads: int) -> npt.NDArray[Any]:
    """The first output of an ONNX graph; names come from the graph. Raises EngineUnavailable(no_file |
    bad_onnx)."""
    if not path.is_file():
        raise problem("no_file", path.name)
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False  # one run: an arena would only keep memory
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    session = None
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        if len(names) < len(inputs):
            raise problem("bad_onnx", path.name, f"{len(names)} inputs")
        return np.asarray(session.run(None, dict(zip(names, inputs, strict=False)))[0])
    except CosydError:
        raise
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise problem("bad_onnx", path.name, str(error).partition("\n")[0]) from error
    finally:
        del session
        gc.collect()


def speech_tokens(
    folder: Path, audio_16k: npt.NDArray[np.float32], threads: int = 1
) -> npt.NDArray[np.int32]:
    """Speech token ids of 16 kHz audio, 25 a second. Raises EngineUnavailable(bad_onnx)."""
    mel = whisper_mel(audio_16k)
    out = _run(folder / TOKENIZER, [mel[None], np.array([mel.shape[1]], np.int32)], threads)
    return out.reshape(-1).astype(np.int32)


def speaker_vector(
    folder: Path, audio_16k: npt.NDArray[np.float32], threads: int = 1
) -> npt.NDArray[np.float32]:
    """The speaker vector [192] of 16 kHz audio. Raises EngineUnavailable(bad_onnx)."""
    fbank = kaldi_fbank(audio_16k)
    centred = fbank - fbank.mean(axis=0, keepdims=True)
    out = _run(folder / SPEAKER, [centred[None].astype(np.float32)], threads)
    vector = out.reshape(-1).astype(np.float32)
    if not np.isfinite(vector).all() or not np.any(vector):
        raise problem("bad_onnx", SPEAKER, "the speaker vector is not finite")
    return vector


def encode_voice(
    folder: Path,
    audio: npt.NDArray[Any],
    rate: int,
    *,
    ratio: int = 2,
    codes: int | None = None,
    max_seconds: float = MAX_SECONDS,
    threads: int = 1,
) -> VoiceArrays:
    """All three, cut to the same length. Raises CosydError(bad_audio), EngineUnavailable(no_file |
    bad_onnx)."""
    audio = check_audio(audio, rate, max_seconds)
    audio_16k = resample(audio, rate, RATE_16K)
    tokens = speech_tokens(folder, audio_16k, threads)
    mel = flow_mel(resample(audio, rate, RATE_24K))
    n = min(len(mel) // ratio, len(tokens))
    tokens, mel = tokens[:n], mel[: ratio * n]
    if n == 0 or tokens.min() < 0 or (codes is not None and tokens.max() >= codes):
        raise problem("bad_onnx", TOKENIZER, "speech tokens out of range")
    return VoiceArrays(tokens, mel, speaker_vector(folder, audio_16k, threads))


def source_tokens(
    folder: Path, audio: npt.NDArray[Any], rate: int, *, codes: int | None = None, threads: int = 1
) -> tuple[int, ...]:
    """Speech tokens of what is said in a recording of at most 30 s, for voice conversion. Raises
    CosydError(bad_audio), EngineUnavailable(no_file | bad_onnx)."""
    audio = check_audio(audio, rate)
    tokens = speech_tokens(folder, resample(audio, rate, RATE_16K), threads)
    if not len(tokens) or tokens.min() < 0 or (codes is not None and tokens.max() >= codes):
        raise problem("bad_onnx", TOKENIZER, "speech tokens out of range")
    return tuple(int(token) for token in tokens)
