"""Six formats, streamed and exact, judged by ffprobe and libsndfile."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pipeline.audio.encode import (
    EXTENSIONS,
    MIME_TYPES,
    check_format,
    encode_file,
    missing_program,
    open_encoder,
)
from pipeline.audio.tags import ai_tag, copy_flac, flac_bytes
from pipeline.codes import CosydError
from pipeline.jobs import FORMATS
from tests.unit.audiokit import comments

RATE = 24_000
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")


def speechlike(seconds: float) -> np.ndarray:
    """Harmonics with a slow envelope and a long silence in the middle; int16."""
    t = np.arange(round(seconds * RATE)) / RATE
    tone = sum(np.sin(2 * np.pi * 150 * h * t) / h for h in range(1, 12))
    envelope = np.clip(np.sin(2 * np.pi * 1.5 * t) + 0.3, 0, 1)
    envelope[(t > seconds / 3) & (t < 2 * seconds / 3)] = 0
    return (6000 * tone * envelope).astype(np.int16)


def probe(path: Path) -> dict[str, str]:
    command = ["ffprobe", "-v", "error", "-of", "json", "-show_entries"]
    entries = "format=duration:stream=codec_name,sample_rate,channels"
    done = subprocess.run([*command, entries, str(path)], capture_output=True, check=True)
    found = json.loads(done.stdout)
    return {**found["streams"][0], **found["format"]}


def decoded(path: Path, format: str) -> np.ndarray:
    """All samples as ffmpeg decodes them, at 24 kHz; any complaint of the decoder fails the test."""
    raw = ["-f", "s16le", "-ar", "24000", "-ac", "1"] if format == "pcm" else []
    command = ["ffmpeg", "-v", "error", *raw, "-i", str(path), "-f", "s16le", "-ac", "1", "-ar", "24000", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    return np.frombuffer(done.stdout, "<i2")


def streamed(format: str, samples: np.ndarray, step: int = 2400) -> tuple[bytes, list[int]]:
    encoder = open_encoder(format)
    out, sizes = b"", []
    for at in range(0, len(samples), step):
        data = encoder.encode(samples[at : at + step].tobytes())
        sizes.append(len(data))
        out += data
    out += encoder.finish()
    encoder.close()
    return out, sizes


CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "mp3", "opus": "opus", "aac": "aac"}


@needs_ffmpeg
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_decodes_to_what_went_in(format: str, tmp_path: Path) -> None:
    samples = speechlike(9)
    data, _ = streamed(format, samples)
    path = tmp_path / f"a{EXTENSIONS[format]}"
    path.write_bytes(data)
    heard = decoded(path, format)
    assert len(heard) == pytest.approx(len(samples), rel=0.02)
    if format in ("wav", "flac", "pcm"):
        assert np.array_equal(heard, samples)
    else:
        lag = np.argmax(
            np.correlate(heard[:60_000].astype(float), samples[4000:44_000].astype(float), "valid")
        )
        cut = heard[lag : lag + 40_000].astype(float)
        likeness = np.corrcoef(cut, samples[4000 : 4000 + len(cut)])[0, 1]
        assert likeness > 0.95
    if format in CODECS:
        found = probe(path)
        assert found["codec_name"] == CODECS[format]
        assert int(found["channels"]) == 1
        assert int(found["sample_rate"]) == (48_000 if format == "opus" else RATE)
    if format == "mp3":
        assert float(probe(path)["duration"]) == pytest.approx(9, rel=0.02)


@needs_ffmpeg
@pytest.mark.parametrize("format", FORMATS)
def test_the_first_bytes_come_early_and_silence_does_not_stall_the_stream(format: str) -> None:
    samples = np.concatenate([speechlike(3)[:24_000], np.zeros(5 * RATE, np.int16), speechlike(3)[:24_000]])
    encoder = open_encoder(format)
    sizes = []
    for at in range(0, len(samples), 12_000):
        data = encoder.encode(samples[at : at + 12_000].tobytes())
        deadline = 40
        while format == "aac" and not data and deadline:  # the child works at its own pace
            deadline -= 1
            data = encoder.encode(b"") or _wait_for(encoder)
        sizes.append(len(data))
    assert encoder.finish() or format in ("pcm", "wav")
    assert sizes[0] > 0, "half a second of sound must bring bytes"
    assert all(sum(sizes[i : i + 2]) > 0 for i in range(len(sizes) - 1)), "no second without bytes"


def _wait_for(encoder: object) -> bytes:
    import select

    pipe = encoder.encoder._child.stdout  # type: ignore[attr-defined]
    select.select([pipe], [], [], 0.25)
    return b""


@needs_ffmpeg
@pytest.mark.parametrize("format", FORMATS)
def test_a_finished_file_has_exact_headers(format: str, tmp_path: Path) -> None:
    samples = speechlike(6)
    source, out = tmp_path / "source.flac", tmp_path / f"out{EXTENSIONS[format]}"
    soundfile.write(source, samples, RATE, "PCM_16")
    encode_file(source, format, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, source.name])
    assert len(decoded(out, format)) == pytest.approx(len(samples), rel=0.02)
    if format == "wav":
        with wave.open(str(out)) as file:
            assert (file.getnframes(), file.getframerate(), file.getnchannels()) == (len(samples), RATE, 1)
            assert np.array_equal(np.frombuffer(file.readframes(len(samples)), "<i2"), samples)
    elif format == "pcm":
        assert out.read_bytes() == samples.tobytes()
    elif format == "flac":
        assert np.array_equal(soundfile.read(out, dtype="int16")[0], samples)
    elif format != "aac":  # ADTS has no header with a length; ffprobe guesses from the first frames
        assert float(probe(out)["duration"]) == pytest.approx(6, rel=0.02)


def test_a_wav_stream_says_that_its_length_is_unknown() -> None:
    encoder = open_encoder("wav")
    data = encoder.encode(b"\1\0") + encoder.finish()
    assert len(data) == 46
    assert struct.unpack("<4sI4s", data[:12]) == (b"RIFF", 0xFFFFFFFF, b"WAVE")
    assert struct.unpack("<HHIIHH", data[20:36]) == (1, 1, RATE, 2 * RATE, 2, 16)
    assert struct.unpack("<I", data[40:44]) == (0xFFFFFFFF,)


@pytest.mark.parametrize("format", ["ogg", "", "MP3", "x" * 500])
def test_an_unknown_format_names_the_ones_there_are(format: str) -> None:
    with pytest.raises(CosydError) as error:
        open_encoder(format)
    assert error.value.code == "unknown_format"
    assert "opus" in error.value.params["allowed"]
    assert len(error.value.params["value"]) <= 80


def test_aac_without_ffmpeg_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_program("aac") == "ffmpeg"
    for call in (lambda: open_encoder("aac"), lambda: encode_file(tmp_path / "a", "aac", tmp_path / "b")):
        with pytest.raises(CosydError) as error:
            call()
        assert error.value.code == "unknown_format"
        assert error.value.params["missing"] == "ffmpeg"
        assert "aac" not in error.value.params["allowed"]
    for format in FORMATS:
        if format != "aac":
            check_format(format)


TAG = ai_tag("0123456789abcdef")


@needs_ffmpeg
@pytest.mark.parametrize("format", sorted(CODECS))
@pytest.mark.parametrize("tag", [TAG, ""])
def test_a_stream_and_a_file_say_that_they_are_ai_generated(format: str, tag: str, tmp_path: Path) -> None:
    samples = speechlike(3)
    source, whole = tmp_path / "source.flac", tmp_path / f"whole{EXTENSIONS[format]}"
    soundfile.write(source, samples, RATE, "PCM_16")
    encode_file(source, format, whole, tag)
    encoder = open_encoder(format, tag=tag)
    live = tmp_path / f"live{EXTENSIONS[format]}"
    live.write_bytes(encoder.encode(samples.tobytes()) + encoder.finish())
    for path in (whole, live):
        assert comments(path) == ([tag] if tag else [])
        assert len(decoded(path, format)) == pytest.approx(len(samples), rel=0.05)
        if format in ("wav", "flac"):
            assert np.array_equal(decoded(path, format), samples)


@needs_ffmpeg
def test_an_m4a_is_one_and_says_it_too(tmp_path: Path) -> None:
    source, out = tmp_path / "source.flac", tmp_path / "out.m4a"
    soundfile.write(source, speechlike(2), RATE, "PCM_16")
    encode_file(source, "aac", out, TAG)
    assert comments(out) == [TAG]
    assert out.read_bytes()[4:8] == b"ftyp" and float(probe(out)["duration"]) == pytest.approx(2, abs=0.2)


def test_a_tagged_flac_keeps_its_sound_and_any_other_blocks(tmp_path: Path) -> None:
    source, once, twice = (tmp_path / f"{name}.flac" for name in ("a", "b", "c"))
    soundfile.write(source, speechlike(1), RATE, "PCM_16")
    copy_flac(source, once, "one")
    copy_flac(once, twice, TAG)
    assert soundfile.SoundFile(twice).comment == TAG
    assert flac_bytes(once, TAG) == twice.read_bytes() and flac_bytes(source, "") == source.read_bytes()
    assert np.array_equal(soundfile.read(twice, dtype="int16")[0], speechlike(1))
    for broken in (b"", b"RIFF", b"fLaC", b"fLaC\x00\x00"):
        source.write_bytes(broken)
        with pytest.raises(ValueError, match="FLAC"):
            flac_bytes(source, TAG)


@needs_ffmpeg
def test_a_listener_who_leaves_ends_the_child() -> None:
    encoder = open_encoder("aac")
    child = encoder.encoder._child  # type: ignore[attr-defined]
    encoder.encode(speechlike(1).tobytes())
    encoder.close()
    encoder.close()
    assert child.returncode is not None


@needs_ffmpeg
def test_a_child_that_dies_is_an_error_and_not_a_hang() -> None:
    encoder = open_encoder("aac")
    child = encoder.encoder._child  # type: ignore[attr-defined]
    child.kill()
    child.wait()
    with pytest.raises(CosydError):
        for _ in range(100):
            encoder.encode(speechlike(1).tobytes())
    encoder.close()


@pytest.mark.parametrize("format", ["flac", "mp3", "opus"])
def test_a_minute_more_takes_no_more_memory(format: str) -> None:
    code = (
        "import resource, sys, numpy as np\n"
        "from pipeline.audio.encode import open_encoder\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "piece = np.random.default_rng(1).integers(-300, 300, 120_000).astype(np.int16).tobytes()\n"
        "encoder = open_encoder(sys.argv[1])\n"
        "encoder.encode(piece); before = peak()\n"
        "for _ in range(12): encoder.encode(piece)\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, format], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1024, "a minute of samples is 2880 KiB"


def test_every_format_has_a_type_and_an_extension() -> None:
    assert set(MIME_TYPES) == set(EXTENSIONS) == set(FORMATS)
