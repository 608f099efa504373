"""The table of audio inputs (`audio_inputs.md`): each row has its verdict, in a test that has its number.

The recipes are soundfile's and ffmpeg's instead of sox's, with the same numbers. U42, which is about a
request, is in tests/integration/test_uploads.py. Here a clip is accepted when it is kept: at one level,
without NaN, beginning with sound; how enrolled voices speak is tested in tests/cosyvoice3.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from click.testing import CliRunner, Result

from daemon.cli.main import main
from pipeline.codes import CosydError
from pipeline.paths import StatePaths
from pipeline.store.ensure import ensure_schema
from pipeline.voices.registry import clip_path
from tests.unit.clipkit import BASE_TEXT, RATE, base, ffmpeg, needs_espeak, needs_ffmpeg, write

pytestmark = needs_espeak


class Shelf:
    """`cosyd voices add` on a state folder of its own."""

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths.at(root / "state", {})
        self.paths.ensure()
        ensure_schema(self.paths)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(
            main, list(arguments), env={"COSYD_LANG": "en", "COSYD_STATE_DIR": str(self.paths.root)}
        )

    def add(self, file: Path | str, *more: str) -> tuple[dict[str, Any], Any]:
        """What is said of an accepted file, and the clip that is kept."""
        done = self.run("voices", "add", "--name", "A", "--consent", "own", "--json", *more, "--", str(file))
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        clip, rate = soundfile.read(clip_path(self.paths, found["id"]), dtype="float32")
        assert rate == RATE and np.isfinite(clip).all() and 0.08 < np.abs(clip).max() <= 0.81
        assert abs(clip.mean()) < 0.01
        first = np.flatnonzero(np.abs(clip) > 0.02)[0] / rate
        assert first < 0.5, "it begins with sound"
        return found["verdict"], clip

    def refused(self, file: Path, reason: str) -> str:
        """The sentence with which a file is refused; nothing may be left of it."""
        done = self.run("voices", "add", "--name", "A", "--consent", "own", "--", str(file))
        assert done.exit_code == 2, done.output
        assert list(self.paths.voices.iterdir()) == [] and list(self.paths.tmp.iterdir()) == []
        from pipeline.voices.reference import read_clip

        with pytest.raises(CosydError) as error:
            read_clip(file, max_seconds=10, transcript=None)
        assert (error.value.code, error.value.params["reason"]) == ("bad_audio", reason)
        return done.stderr


@pytest.fixture(scope="module")
def one_shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture
def shelf(one_shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """Empty again after each test."""
    monkeypatch.setattr("daemon.cli.voices.require_model", lambda root: None)  # no model is needed to read
    yield one_shelf
    for folder in list(one_shelf.paths.voices.iterdir()):
        assert one_shelf.run("voices", "remove", folder.name).exit_code == 0


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def samples(spoken: Path) -> Any:
    return soundfile.read(spoken, dtype="float32")[0]


@pytest.fixture(scope="module")
def enrolled(spoken: Path) -> Any:
    """What becomes of BASE."""
    from pipeline.voices.reference import read_clip

    return read_clip(spoken, max_seconds=10, transcript=None).audio


def same_voice(one: Any, other: Any, least: float = 0.99) -> None:
    """The same clip: as long but for the margins, and the same sound wherever it begins."""
    assert abs(len(one) - len(other)) <= 0.2 * RATE
    size = 1 << (len(one) + len(other)).bit_length()
    found = np.fft.irfft(np.fft.rfft(one, size) * np.conj(np.fft.rfft(other, size)), size)
    likeness = float(found.max() / np.sqrt(np.square(one).sum() * np.square(other).sum()))
    assert likeness > least, likeness


def codes(verdict: dict[str, Any]) -> list[str]:
    return [found["code"] for found in verdict["advice"]]


def test_u01_the_control_is_accepted_and_nothing_is_wrong_with_it(shelf: Shelf, spoken: Path) -> None:
    verdict, clip = shelf.add(spoken, "--transcript", BASE_TEXT)
    assert verdict["good"] and codes(verdict) == []
    assert {c["check"]: c["verdict"] for c in verdict["checks"]} == dict.fromkeys(
        ("length", "speech", "clipping", "noise", "level", "rate", "whole", "words"), "good"
    )
    assert 6.5 < len(clip) / RATE < 7.6


def test_u02_a_fifth_of_a_second_is_refused_and_the_minimum_is_named(
    shelf: Shelf, samples: Any, tmp_path: Path
) -> None:
    said = shelf.refused(write(tmp_path / "u02.wav", samples[RATE // 2 : RATE * 7 // 10]), "short")
    assert "at least 1 s" in said and "0.1 s" in said


def test_u04_of_31_seconds_the_best_part_is_taken_and_said_or_the_limit_is_named(
    shelf: Shelf, samples: Any, tmp_path: Path
) -> None:
    file = write(tmp_path / "u04.wav", np.tile(samples, 5)[: 31 * RATE])
    done = shelf.run("voices", "add", "--name", "A", "--consent", "own", "--transcript", BASE_TEXT, str(file))
    assert done.exit_code == 2 and "too long" in done.stderr and "10 s" in done.stderr
    assert list(shelf.paths.voices.iterdir()) == []
    verdict, clip = shelf.add(file)
    assert codes(verdict)[0] == "cut" and verdict["shortened"] and 3 <= len(clip) / RATE <= 10
    assert verdict["clip"]["seconds"] == pytest.approx(len(clip) / RATE, abs=0.02)


def test_u06_stereo_of_the_same_is_the_same_voice(
    shelf: Shelf, samples: Any, enrolled: Any, tmp_path: Path
) -> None:
    _, clip = shelf.add(write(tmp_path / "u06.wav", np.stack([samples, samples], 1)))
    same_voice(clip, enrolled)


def test_u09_a_telephone_recording_is_resampled_with_a_notice(
    shelf: Shelf, samples: Any, tmp_path: Path
) -> None:
    verdict, clip = shelf.add(write(tmp_path / "u09.wav", soxr.resample(samples, RATE, 8000), 8000))
    assert codes(verdict) == ["telephone"] and "8000" in verdict["advice"][0]["message"]
    assert 6.5 < len(clip) / RATE < 7.6


def test_u11_48_khz_float_is_the_same_voice(
    shelf: Shelf, samples: Any, enrolled: Any, tmp_path: Path
) -> None:
    wide = soxr.resample(samples, RATE, 48_000)
    _, clip = shelf.add(write(tmp_path / "u11.wav", wide, 48_000, "FLOAT"))
    same_voice(clip, enrolled)
    verdict, clip = shelf.add(write(tmp_path / "hot.wav", wide * 4, 48_000, "FLOAT"))
    same_voice(clip, enrolled)  # above full scale: turned down, neither cut off nor wrapped
    assert codes(verdict) == []


def test_u12_24_bit_stereo_is_the_same_voice(
    shelf: Shelf, samples: Any, enrolled: Any, tmp_path: Path
) -> None:
    wide = soxr.resample(samples, RATE, 44_100)
    _, clip = shelf.add(write(tmp_path / "u12.wav", np.stack([wide, wide], 1), 44_100, "PCM_24"))
    same_voice(clip, enrolled)


@pytest.mark.parametrize("dither", [0.0, 1.0], ids=["zeros", "dither"])
def test_u13_silence_is_refused(shelf: Shelf, tmp_path: Path, dither: float) -> None:
    rng = np.random.default_rng(0)
    lsb = (rng.integers(-1, 2, 6 * RATE) * dither).astype(np.int16)
    assert "Nothing can be heard" in shelf.refused(write(tmp_path / "u13.wav", lsb), "silent")


def test_u15_an_overdriven_recording_gets_a_notice(shelf: Shelf, samples: Any, tmp_path: Path) -> None:
    loud = np.clip(samples * 100, -1, 1)
    verdict, _ = shelf.add(write(tmp_path / "u15.wav", loud))
    assert codes(verdict) == ["clipped"]
    verdict, _ = shelf.add(write(tmp_path / "softer.wav", 0.3 * loud))  # the tops are as flat afterwards
    assert codes(verdict) == ["clipped"]


def test_u18_ten_seconds_of_silence_before_are_trimmed(
    shelf: Shelf, samples: Any, enrolled: Any, tmp_path: Path
) -> None:
    verdict, clip = shelf.add(write(tmp_path / "u18.wav", np.concatenate([np.zeros(10 * RATE), samples])))
    same_voice(clip, enrolled)
    assert verdict["clip"]["start"] > 9.5 and codes(verdict) == []


@needs_ffmpeg
def test_u20_mp3_bytes_with_the_name_of_a_wav_are_read(
    shelf: Shelf, spoken: Path, enrolled: Any, tmp_path: Path
) -> None:
    made = ffmpeg(spoken, tmp_path / "t.mp3", "-c:a", "libmp3lame", "-b:a", "64k")
    _, clip = shelf.add(made.rename(tmp_path / "u20.wav"))
    same_voice(clip, enrolled, 0.97)


@needs_ffmpeg
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("u21.m4a", ["-c:a", "aac"]),
        ("late.mov", ["-c:a", "aac", "-f", "mov"]),
        pytest.param("early.mp4", ["-c:a", "aac", "-movflags", "+faststart"], marks=pytest.mark.slow),
        pytest.param("memo.caf", ["-c:a", "alac"], marks=pytest.mark.slow),
        pytest.param("old.wma", ["-c:a", "wmav2"], marks=pytest.mark.slow),
        pytest.param("cover.mka", ["-c:a", "flac"], marks=pytest.mark.slow),
    ],
)
def test_u21_m4a_and_its_like_are_accepted(
    shelf: Shelf, spoken: Path, enrolled: Any, tmp_path: Path, name: str, options: list[str]
) -> None:
    made = ffmpeg(spoken, tmp_path / name, *options)
    _, clip = shelf.add(made.rename(tmp_path / "named.wav"))
    same_voice(clip, enrolled, 0.97)


@needs_ffmpeg
def test_u22_what_a_browser_records_is_accepted(
    shelf: Shelf, spoken: Path, enrolled: Any, tmp_path: Path
) -> None:
    made = ffmpeg(spoken, tmp_path / "u22.webm", "-c:a", "libopus", "-b:a", "32k")
    _, clip = shelf.add(made)
    same_voice(clip, enrolled, 0.9)
    live = ffmpeg(spoken, tmp_path / "live.webm", "-c:a", "libopus", "-b:a", "32k", "-live", "1")
    _, clip = shelf.add(live.rename(tmp_path / "live.wav"))  # no length in its header, and the wrong name
    same_voice(clip, enrolled, 0.9)


def test_u25_nothing_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "u25.wav").touch()
    shelf.refused(tmp_path / "u25.wav", "empty")


def test_u27_a_cut_off_file_gets_a_warning(shelf: Shelf, spoken: Path, tmp_path: Path) -> None:
    (tmp_path / "u27.wav").write_bytes(spoken.read_bytes()[:100_000])
    verdict, clip = shelf.add(tmp_path / "u27.wav")
    assert "cut_off" in codes(verdict) and 1.5 < len(clip) / RATE < 2.1


@pytest.mark.parametrize(
    "name",
    [
        "u29 参考 音频 (1)\u3000é.wav",
        unicodedata.normalize("NFD", "u30_ré_がぎ") + ".wav",
        "'; rm -rf $HOME #\n.wav",
    ],
    ids=["u29", "u30", "shell"],
)
def test_u29_u30_any_name_opens_and_a_voice_is_found_by_its_nfc_name(
    shelf: Shelf, spoken: Path, enrolled: Any, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(spoken.read_bytes())
    _, clip = shelf.add(tmp_path / name, "--name", unicodedata.normalize("NFD", "Ré がぎ"))
    same_voice(clip, enrolled)
    listed = json.loads(shelf.run("voices", "--json").stdout)
    assert [voice["name"] for voice in listed if not voice["builtin"]] == ["Ré がぎ"]


def test_u32_a_name_like_an_option_is_a_name(
    shelf: Shelf, spoken: Path, enrolled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "-rf.wav").write_bytes(spoken.read_bytes())
    monkeypatch.chdir(tmp_path)
    for name in ("-rf.wav", "./-rf.wav"):
        _, clip = shelf.add(name)
        same_voice(clip, enrolled)


def test_u35_a_header_without_sound_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "u35.wav").write_bytes(b"RIFF\xff\xff\xff\x7fWAVE")
    shelf.refused(tmp_path / "u35.wav", "unreadable")


def test_u37_in_white_noise_no_speech_is_found(shelf: Shelf, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 6 * RATE)
    verdict, _ = shelf.add(write(tmp_path / "u37.wav", noise))
    assert codes(verdict) == ["no_speech"]


def test_u39_192_khz_is_resampled(
    shelf: Shelf, samples: Any, enrolled: Any, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    wide = soxr.resample(samples, RATE, 192_000)
    file = write(tmp_path / "u39.wav", wide, 192_000)
    _, clip = shelf.add(file)
    same_voice(clip, enrolled)
