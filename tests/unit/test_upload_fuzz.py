"""Hostile uploads: nothing of a neighbour is decoded, nobody is called, nothing is left, each has a reason.

Beside every upload lie a recording (a tone of a known pitch) and pictures, and a listener waits on loopback.
The baits (`tests.unit.baits`) name both in every way that a playlist, a manifest or a container can. A few of
each kind run always, all of them, and many more broken files, with --long.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.audio.recording import Recording, read_recording
from pipeline.codes import CosydError
from tests.unit.baits import (
    TARGETS,
    huge_headers,
    movie,
    playlists,
    polyglots,
    references,
    spoil,
    target,
)
from tests.unit.clipkit import RATE, ffmpeg, needs_ffmpeg, speechlike, write

pytestmark = needs_ffmpeg

PITCH = 1234.0
"""Of the neighbour's tone."""

REASONS = {"empty", "unreadable", "cut_off", "broken", "rate", "slow"}


@dataclass(frozen=True)
class Place:
    """A folder with the neighbours and, in turn, each upload; and who listens."""

    folder: Path
    tone: Path
    listener: socket.socket

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def called(self) -> bool:
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("uploads")
    tone = write(folder / "tone.wav", 0.5 * np.sin(2 * np.pi * PITCH * np.arange(4 * RATE) / RATE))
    ffmpeg(tone, folder / "tone.ts", "-c:a", "mp2", "-f", "mpegts")
    ffmpeg(tone, folder / "tone.mp4", "-c:a", "aac")
    for number in range(3):
        (folder / f"img{number:03d}.ppm").write_bytes(b"P6 16 16 255\n" + bytes(768))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Place(folder, tone, listener)


def tone_share(audio: Any) -> float:
    """How much of the power is the neighbour's tone. In less than a tenth of a second it cannot be told."""
    if len(audio) < RATE // 10:
        return 0.0
    powers = np.square(np.abs(np.fft.rfft(audio * np.hanning(len(audio)))))
    at = round(PITCH * len(audio) / RATE)
    return float(powers[max(0, at - 3) : at + 4].sum() / max(powers.sum(), 1e-20))


def look(place: Place, name: str, data: bytes) -> Recording | str:
    """What becomes of an upload: a recording, or the reason why not. What holds for each is checked here."""
    path = place.folder / name
    path.write_bytes(data)
    before = sorted(os.listdir(place.folder))
    descriptors = len(os.listdir("/proc/self/fd"))
    try:
        found: Recording | str = read_recording(path)
    except CosydError as error:
        assert error.code == "bad_audio"
        found = str(error.params["reason"])
        assert found in REASONS, found
    after = sorted(os.listdir(place.folder))
    path.unlink()
    assert after == before and len(os.listdir("/proc/self/fd")) == descriptors
    assert not place.called()
    if isinstance(found, Recording):
        assert np.isfinite(found.audio).all() and found.seconds <= 121
        # A damaged file of our own can crackle at any pitch, for a few percent; the neighbour is all tone.
        assert tone_share(found.audio) < 0.2, "a neighbour was decoded"
    return found


# -- playlists and manifests ----------------------------------------------------------------------------


KINDS = sorted(playlists("x"))


def test_no_playlist_of_any_kind_is_followed(place: Place, long: bool) -> None:
    names = ("a.wav", "a.m3u8", "a.mp4")
    for number, kind in enumerate(KINDS if long else KINDS[::5]):
        chosen = TARGETS if long else (TARGETS[number % len(TARGETS)],)
        for where in chosen:
            text = playlists(target(place.tone, place.url, where))[kind]
            name = names[number % 3]
            assert look(place, name, text.encode()) in ("unreadable", "cut_off"), (kind, where)


def unguarded_hls() -> list[str]:
    """The options that take ffmpeg's own guards away; each version has other ones."""
    import subprocess

    command = ["ffmpeg", "-hide_banner", "-h", "demuxer=hls"]
    known = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    guards = {"-allowed_extensions": "ALL", "-allowed_segment_extensions": "ALL", "-extension_picky": "0"}
    found = [word for option, off in guards.items() if f" {option} " in known for word in (option, off)]
    return ["-f", "hls", *found]  # since 7.1 a playlist is not recognised without its extension


def test_what_would_be_followed_otherwise_is_what_the_walls_hold(place: Place) -> None:
    """The baits are good: without our walls ffmpeg does decode the neighbour."""
    import subprocess

    for kind in ("m3u8", "concat"):
        bait = place.folder / "bait"
        bait.write_text(playlists("tone.ts" if kind == "m3u8" else "tone.wav")[kind])
        extra = unguarded_hls() if kind == "m3u8" else []
        command = ["ffmpeg", "-nostdin", "-loglevel", "quiet", *extra, "-i", str(bait)]
        command += ["-ac", "1", "-ar", str(RATE), "-f", "f32le", "-"]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        bait.unlink()
        assert tone_share(np.frombuffer(done.stdout, "<f4")) > 0.5, kind


# -- containers that name others ------------------------------------------------------------------------


def test_a_movie_whose_sound_lies_elsewhere_stays_without(place: Place, long: bool) -> None:
    for where, name in ((f"file://{place.tone}", str(place.tone)), (f"{place.url}/t", "tone.wav")):
        for reference in references(where, name) if long else references(where, name)[::2]:
            found = look(place, "a.mp4", movie(reference))
            # Its own bytes may be taken for samples: less than a kilobyte.
            assert isinstance(found, str) or found.seconds < 0.1


def test_polyglots_are_refused(place: Place, long: bool) -> None:
    for number, (kind, data) in enumerate(list(polyglots(place.tone).items())[:: 1 if long else 5]):
        for name in ("a.wav", "a.m3u8", "a.avi", "a.jpg") if long else (("a.wav", "a.avi")[number % 2],):
            found = look(place, name, data)
            # After a wav header any bytes are samples: a click, and never more.
            assert isinstance(found, str) or found.seconds < 0.5, (kind, found)


def test_an_image_sequence_or_an_address_as_name_is_no_recording(place: Place, long: bool) -> None:
    picture = b"P6 16 16 255\n" + bytes(768)
    names = ("img%03d.wav", "-i", "img*.ppm", "%d", "pipe:0", "http:evil", "concat:x|y", "|cat", "subfile,,")
    for name in names if long else names[:1]:
        assert look(place, name, picture) in ("unreadable", "cut_off"), name


# -- broken files ---------------------------------------------------------------------------------------


def test_headers_that_promise_the_moon_cost_nothing(place: Place, long: bool) -> None:
    for kind, data in list(huge_headers().items())[:: 1 if long else 5]:
        found = look(place, "a.wav", data)
        assert isinstance(found, str) or found.seconds < 1, kind


@pytest.fixture(scope="module")
def good(long: bool, place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One recording in many containers."""
    folder = tmp_path_factory.mktemp("good")
    source = write(folder / "s.wav", speechlike(2))
    made = {"wav": source.read_bytes()}
    for name, options in {
        "flac": [], "ogg": ["-c:a", "libvorbis"], "opus": ["-c:a", "libopus"], "mp3": ["-c:a", "libmp3lame"],
        "m4a": ["-c:a", "aac"], "webm": ["-c:a", "libopus"], "caf": ["-c:a", "alac"], "aiff": [], "w64": [],
        "wma": ["-c:a", "wmav2"], "au": [], "wv": ["-c:a", "wavpack"], "tta": ["-c:a", "tta"],
        "ac3": ["-c:a", "ac3"], "aac": ["-c:a", "aac", "-f", "adts"], "mka": ["-c:a", "flac"],
    }.items():  # fmt: skip
        if long or name in ("m4a", "webm"):
            made[name] = ffmpeg(source, folder / f"s.{name}", *options).read_bytes()
    return made


def test_every_container_is_read_under_any_name(place: Place, good: dict[str, bytes]) -> None:
    for kind, data in list(good.items()):
        found = look(place, "a.m3u8", data)
        assert isinstance(found, Recording) and found.seconds == pytest.approx(2, abs=0.15), kind


# In a process of its own: a child's peak starts with the size of the one that forked it, here pytest's.
PEAK = """
import resource, sys
from contextlib import suppress
from pathlib import Path
from pipeline.audio.recording import read_recording
from pipeline.codes import CosydError
for name in sys.argv[1:]:
    with suppress(CosydError):
        read_recording(Path(name))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_broken_files_do_no_harm_and_memory_stays_flat(
    place: Place, good: dict[str, bytes], rounds: Callable[[int, int], int], tmp_path: Path
) -> None:
    kinds = sorted(good)
    outcomes: set[str] = set()
    count = rounds(6, 1500)
    peak = 0
    for number in range(count):
        rng = np.random.default_rng(number)
        spoilt = spoil(good[kinds[number % len(kinds)]], rng)
        if number < 50:
            (tmp_path / f"{number}.wav").write_bytes(spoilt)
        found = look(place, "a.wav", spoilt)
        outcomes.add(found if isinstance(found, str) else "read")
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if number == count // 3:
            peak = now
    assert now - peak < 24 * 1024, "KiB of this process"
    # The largest child: python with numpy and soxr, or ffmpeg; both far below their limit of 1.25 GiB.
    command = [sys.executable, "-c", PEAK, *sorted(str(file) for file in tmp_path.iterdir())]
    told = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert 10 * 1024 < int(told.stdout) < 400 * 1024
    assert "read" in outcomes and outcomes <= REASONS | {"read"}


def test_noise_and_text_are_no_recordings(place: Place, rounds: Callable[[int, int], int]) -> None:
    for number in range(rounds(2, 300)):
        rng = np.random.default_rng(number)
        data = (
            rng.bytes(int(rng.integers(1, 60_000)))
            if number % 2
            else b"lorem ipsum \n" * int(rng.integers(1, 999))
        )
        found = look(place, "a.mp3", data)
        assert isinstance(found, str) or found.seconds < 2, number
