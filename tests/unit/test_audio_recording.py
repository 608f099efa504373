"""Strangers' files: which decoder, what is mixed, what is cut off, and walls around whoever reads them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from pipeline.audio.container import is_cut_off
from pipeline.audio.decode import Stream
from pipeline.audio.mixdown import NotFinite, agreeing, mix
from pipeline.audio.recording import read_recording
from pipeline.codes import CosydError
from tests.unit.clipkit import RATE, ffmpeg, needs_ffmpeg, speechlike, write


def reason(path: Path) -> str:
    with pytest.raises(CosydError) as refused:
        read_recording(path)
    assert refused.value.code == "bad_audio"
    return str(refused.value.params["reason"])


# -- decoding -------------------------------------------------------------------------------------------


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    audio = speechlike(2)
    for kind, name in (("WAV", "a.raw"), ("FLAC", "b.mp3"), ("OGG", "c.txt"), ("AIFF", "d")):
        subtype = "VORBIS" if kind == "OGG" else "PCM_16"
        found = read_recording(write(tmp_path / name, audio, RATE, subtype, kind))
        assert (found.decoder, found.rate, found.channels, found.cut_off) == ("libsndfile", RATE, 1, False)
        assert found.seconds == pytest.approx(2, abs=0.01)


@needs_ffmpeg
def test_what_libsndfile_cannot_read_ffmpeg_does_and_no_more_than_asked_for(tmp_path: Path) -> None:
    source = write(tmp_path / "a.wav", speechlike(4))
    memo = ffmpeg(source, tmp_path / "memo.m4a", "-c:a", "aac", "-ar", "44100")
    found = read_recording(memo, seconds=3)
    assert (found.decoder, found.rate, found.more) == ("ffmpeg", 44_100, True)
    assert found.seconds == pytest.approx(3, abs=0.05)
    assert found.audio.dtype == np.float32 and 0.1 < np.abs(found.audio).max() < 1


def test_what_is_no_file_or_no_sound_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "nothing").touch()
    (tmp_path / "text").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    assert [reason(tmp_path / name) for name in ("nothing", "missing", "pipe", ".")] == ["empty"] * 4
    assert reason(tmp_path / "text") == "unreadable"
    assert reason(write(tmp_path / "slow.wav", speechlike(1), 4000)) == "rate"
    broken = speechlike(1)
    broken[500] = np.nan
    assert reason(write(tmp_path / "nan.wav", broken, RATE, "FLOAT")) == "broken"


# -- mixing ---------------------------------------------------------------------------------------------


def stream(wide: Any, rate: int = RATE, exact: bool = False) -> Stream:
    blocks = (wide[at : at + 4096].astype(np.float32) for at in range(0, len(wide), 4096))
    return Stream(rate, wide.shape[1], exact, None, blocks)


VOICE = speechlike(3)
HISS = np.random.default_rng(5).standard_normal(len(VOICE)).astype(np.float32) * 0.01


@pytest.mark.parametrize(
    ("wide", "chosen"),
    [
        (np.stack([VOICE, VOICE], 1), [0, 1]),
        (np.stack([VOICE, -VOICE], 1), [0]),
        (np.stack([0.9 * VOICE, -VOICE], 1), [1]),
        (np.stack([HISS, VOICE], 1), [1]),
        (np.stack([VOICE, np.roll(VOICE, 60)], 1), [0]),
        (np.stack([VOICE + 0.5, 0.9 * VOICE - 0.5], 1), [0, 1]),
        (np.stack([HISS, 0 * HISS, VOICE, HISS, 0.1 * VOICE, HISS], 1), [2, 4]),
        (np.zeros((RATE, 2), np.float32), [0, 1]),
    ],
    ids=["same", "upside down", "nearly", "one side", "delayed", "offset", "5.1", "silent"],
)
def test_channels_are_mixed_only_where_they_agree(wide: Any, chosen: list[int]) -> None:
    assert agreeing(wide) == chosen
    mono = mix(stream(wide), 10).mono
    centred, loudest = mono - mono.mean(), wide[:, chosen].mean(axis=1)
    assert np.std(centred) == pytest.approx(np.std(loudest), rel=0.02, abs=1e-6)


def test_any_rate_becomes_24_khz_in_time_and_level() -> None:
    for rate in (8000, 11_025, 44_100, 48_000, 96_000, 192_000):
        t = np.arange(2 * rate) / rate
        mixed = mix(stream(np.sin(2 * np.pi * 440 * t)[:, None] * 0.5, rate), 10)
        assert len(mixed.mono) == pytest.approx(2 * RATE, abs=2) and mixed.seconds == 2
        middle = mixed.mono[RATE // 2 : RATE]
        spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
        assert spectrum.argmax() * RATE / len(middle) == pytest.approx(440, abs=2)
        assert np.abs(middle).max() == pytest.approx(0.5, abs=0.01)


def test_cut_off_tops_are_seen_at_any_level_and_loud_numbers_are_no_tops() -> None:
    hot = np.clip(VOICE * 20, -1, 1)[:, None]
    assert mix(stream(hot), 10).clipped > 0.01 and mix(stream(0.2 * hot), 10).clipped > 0.01
    assert mix(stream(VOICE[:, None]), 10).clipped < 1e-4
    assert mix(stream(VOICE[:, None] * 20, exact=True), 10).clipped < 1e-4
    with pytest.raises(NotFinite):
        mix(stream(np.full((100, 1), np.inf)), 10)


# -- what is missing at the end -------------------------------------------------------------------------


def cut(data: bytes, keep: float) -> bool:
    part = data[: int(len(data) * keep)]
    return is_cut_off(io.BytesIO(part), len(part))


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "RF64"])
def test_a_header_that_promises_more_is_seen(kind: str) -> None:
    made = io.BytesIO()
    soundfile.write(made, VOICE, RATE, "PCM_16", format=kind)
    data = made.getvalue()
    assert not cut(data, 1)
    if kind != "RF64":  # its sizes stand elsewhere
        assert cut(data, 0.6)
    streamed = data[:40] + b"\xff\xff\xff\xff" + data[44:]
    assert kind != "WAV" or not is_cut_off(io.BytesIO(streamed), len(streamed))


@needs_ffmpeg
def test_a_box_that_promises_more_is_seen(tmp_path: Path) -> None:
    source = write(tmp_path / "a.wav", speechlike(3))
    for name, flags in (("late.m4a", []), ("early.m4a", ["-movflags", "+faststart"])):
        data = ffmpeg(source, tmp_path / name, "-c:a", "aac", *flags).read_bytes()
        assert not cut(data, 1) and cut(data, 0.7)
    (tmp_path / "half.m4a").write_bytes((tmp_path / "late.m4a").read_bytes()[:9000])
    assert reason(tmp_path / "half.m4a") == "cut_off"
    (tmp_path / "half.m4a").write_bytes(data[: len(data) * 7 // 10])
    found = read_recording(tmp_path / "half.m4a")
    assert found.cut_off and 1 < found.seconds < 2.9


def test_strange_sizes_end_the_search() -> None:
    for data in (
        b"RIFF\0\0\0\0WAVE" + b"JUNK\0\0\0\0" * 20_000,
        b"\0\0\0\x08free" * 20_000,
        b"\0\0\0\x01free" + b"\xff" * 8,
        b"\0\0\0\0ftypisom",
        b"RIFF",
    ):
        is_cut_off(io.BytesIO(data), len(data))


# -- walls ----------------------------------------------------------------------------------------------

TRIES = """
import os, resource, socket, subprocess, sys
from pipeline.audio.confine import Limits, confine
held = confine(Limits(10, 2**30), (sys.prefix, sys.base_prefix, sys.exec_prefix), handed=(0,))
def can(work):
    try:
        work()
        return True
    except OSError:
        return False
def big():
    try:
        bytearray(2**31)
    except MemoryError:
        raise OSError
def write():
    with open(sys.argv[2], "wb") as file:
        file.write(b"x" * 9)
print(sorted(held), can(lambda: open(sys.argv[1]).read()), can(lambda: os.listdir("/")),
    can(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])))), can(lambda: socket.socket()),
    can(lambda: open("/dev/stdin", "rb").read(1)), can(big),
    subprocess.run(["/bin/cat", sys.argv[1]], capture_output=True).returncode)
write()
"""


def test_behind_the_walls_there_is_no_network_no_file_and_no_memory_without_end(tmp_path: Path) -> None:
    import socket

    secret, handed = tmp_path / "secret", tmp_path / "handed"
    secret.write_text("x")
    handed.write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as listener, handed.open("rb") as given:
        port = str(listener.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", TRIES, str(secret), str(tmp_path / "new"), port],
            stdin=given, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    if "no_files" not in done.stdout or "no_network" not in done.stdout:
        pytest.skip("this kernel has no Landlock or no seccomp")
    assert done.stdout == "['limits', 'no_files', 'no_network'] False False False False True False 1\n"
    assert done.returncode != 0 and not (tmp_path / "new").exists()
