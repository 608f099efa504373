"""The take check: good speech passes, spoiled speech is caught, before and inside a job's segment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.audio.check import Finding, Listener, examine, voiced_seconds
from pipeline.codes import CosydError
from pipeline.engines.base import F32Mono, Options, Segment, StopFlag, VoiceFeatures
from pipeline.engines.builtin import BuiltinEngine
from pipeline.engines.builtin.espeak import espeak_path
from pipeline.jobs import SAMPLE_RATE, estimate_seconds
from pipeline.profile import Config
from pipeline.take import Stop, speak_segment

TEXTS = (
    "The old house at the edge of the village had been empty for many years.",
    "Every evening somebody played a slow song, and the neighbours stopped at the gate to listen.",
    "Please close the window before it starts to rain again tonight.",
    "They painted the kitchen yellow and planted beans along the fence.",
)
ENGLISH = """
    the of and a to in is you that it he was for on are as with his they be this have from or one
    had by word but not what all were we when your can said there use an each which she do how their
    if will up other about out many then them these so some her would make like him into time has
    look two more write go see number way could people my than first water been call who oil its now
    find long down day did get come made may part house river lamp quiet seven paper boats kettle
    morning evening winter garden music mountain station village letter
""".split()
CHINESE = "我们今天去公园看花天气很好孩子喜欢在河边玩水老师说明天有考试请大家早点休息晚上特别漂亮"


@pytest.fixture(scope="module")
def engine() -> BuiltinEngine:
    loaded = BuiltinEngine()
    loaded.load(Config(), threading.Event())
    return loaded


def say(engine: BuiltinEngine, text: str, *, voice: str = "heart", speed: float = 1.0) -> F32Mono:
    segment = Segment(0, text, 0, len(text))
    chunks = engine.synthesize(segment, voice, Options(seed=3, speed=speed), threading.Event())
    return np.concatenate(list(chunks))


@pytest.fixture(scope="module")
def spoken(engine: BuiltinEngine) -> dict[str, F32Mono]:
    return {text: say(engine, text) for text in TEXTS}


def doubt(signal: F32Mono, text: str) -> str | None:
    found = examine(signal.astype(np.float32), text, estimate_seconds(text))
    return found.reason if found else None


@pytest.mark.skipif(espeak_path() is None, reason="needs espeak-ng")
def test_good_takes_are_left_alone(engine: BuiltinEngine, rounds: Callable[[int, int], int]) -> None:
    """Words, whole texts, both languages, mixed, half to double speed, both voices."""
    draw, count, alarms = random.Random(11), rounds(30, 1000), []
    for _ in range(count):
        english = " ".join(draw.choices(ENGLISH, k=draw.randint(1, 24))).capitalize() + draw.choice(".!?")
        chinese = "".join(draw.choices(CHINESE, k=draw.randint(2, 30))) + "。"
        text = draw.choice([english, english, chinese, f"{english[:-1]} {chinese}"])
        speed = draw.choice([1.0, 1.0, 0.5, 0.7, 1.5, 2.0])
        signal = say(engine, text, voice=draw.choice(["heart", "espeak"]), speed=speed)
        if found := examine(signal, text, estimate_seconds(text, speed), speed):
            alarms.append((found.reason, speed, text))
    assert len(alarms) <= max(1, count // 200), alarms


def heard_again(take: F32Mono, like_s: float, natural: bool = True) -> Finding | None:
    """What is said of a conversion whose recording has `like_s` of voice; its text is a file name."""
    listener = Listener("memo-2024-03-05.m4a", 1.0, like_s=like_s, natural=natural)
    assert listener.chunk(take.astype(np.float32)) is None
    return listener.end()


def test_a_conversion_is_compared_with_its_recording_and_not_with_its_label(
    spoken: dict[str, F32Mono],
) -> None:
    said = np.concatenate(list(spoken.values()))
    like_s = voiced_seconds(said, SAMPLE_RATE)
    assert voiced_seconds(np.repeat(said, 2), 2 * SAMPLE_RATE) == pytest.approx(like_s, abs=0.2)
    half = said[: len(said) // 3]
    assert heard_again(said, like_s) is None
    assert heard_again(said[: len(said) * 9 // 10], like_s) is None  # it ends where it ends
    assert heard_again(np.tile(half[: len(half) // 2], 6), like_s) is None  # so may the recording
    assert heard_again(half, like_s) == Finding("too_short")
    assert heard_again(np.tile(said, 3), like_s) == Finding("too_long")
    assert heard_again(np.clip(4 * said, -0.5, 0.5), like_s) == Finding("clipped")
    assert heard_again(np.zeros(SAMPLE_RATE), like_s) == Finding("silent")
    assert heard_again(np.zeros(SAMPLE_RATE), 0.0) is None
    assert voiced_seconds(np.zeros(0, np.float32), SAMPLE_RATE) == 0.0
    assert heard_again(half, like_s, natural=False) is None


@pytest.mark.parametrize(
    "text", ["Ha ha ha ha ha ha ha ha.", "哈哈哈哈哈哈哈哈。", "No, no, no, no, no, no!", "0000 0000 0000."]
)
def test_a_text_that_repeats_itself_may_sound_so(engine: BuiltinEngine, text: str) -> None:
    if espeak_path() is None and not text.isascii():
        pytest.skip("needs espeak-ng")
    assert doubt(say(engine, text), text) != "stuck"


@pytest.mark.parametrize("unit_s", [0.15, 0.23, 0.4, 0.777, 1.1, 1.9])
def test_a_stretch_that_comes_again_and_again_is_caught(spoken: dict[str, F32Mono], unit_s: float) -> None:
    noise = np.random.default_rng(1)
    for text, good in spoken.items():
        start, size = len(good) // 3, int(unit_s * SAMPLE_RATE)
        unit = good[start : start + size]
        times = max(3, int(1.5 / unit_s) + 2)
        parts = [unit + noise.normal(0, 0.002, len(unit)) for _ in range(times)]
        assert doubt(np.concatenate([good[:start], *parts, good[start + len(unit) :]]), text) in (
            "stuck",
            "too_long",
        )


def test_a_held_sound_is_caught(spoken: dict[str, F32Mono]) -> None:
    for text, good in spoken.items():
        loudest = int(np.argmax(np.abs(good[4800:-4800]))) + 4800
        held = np.tile(good[loudest : loudest + 480], 110)
        assert doubt(np.concatenate([good[:loudest], held, good[loudest:]]), text) == "stuck"


@pytest.mark.parametrize("gain", [4, 8, 16])
@pytest.mark.parametrize("after", [1.0, 0.5])
def test_clipping_is_caught_also_when_made_softer_later(
    spoken: dict[str, F32Mono], gain: float, after: float
) -> None:
    for text, good in spoken.items():
        assert doubt(np.clip(good * gain, -1, 1) * after, text) == "clipped"


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_an_end_that_is_cut_inside_a_sound_is_caught(spoken: dict[str, F32Mono], pause_s: float) -> None:
    pause = np.zeros(int(pause_s * SAMPLE_RATE), np.float32)
    for text, good in spoken.items():
        for share in (0.3, 0.6, 0.85):
            at = int(share * len(good))
            at += int(np.argmax(np.abs(good[at : at + 4800])))  # inside a sound, not between two
            assert doubt(np.concatenate([good[:at], pause]), text) in ("cut_off", "too_short")


def test_speech_of_an_unlikely_length_is_caught(spoken: dict[str, F32Mono]) -> None:
    for text, good in spoken.items():
        silence = np.zeros(len(good) // 2, np.float32)
        assert doubt(
            np.concatenate([good[: len(good) // 5] * np.linspace(1, 0, len(good) // 5), silence]), text
        )
        assert doubt(np.concatenate([good, good[::-1], good]), text) in ("too_long", "stuck")


def test_nothing_is_expected_of_a_text_without_words_and_of_an_engine_that_beeps() -> None:
    tone = (0.3 * np.sin(np.arange(96_000) / 8)).astype(np.float32)
    for listener in (Listener("..."), Listener("Hello there.", natural=False)):
        assert listener.chunk(tone) is None and listener.end() is None
    speech = Listener("Hello there.")
    assert speech.chunk(tone) is None and speech.end() == Finding("stuck")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_found_before_it_is_passed_on(value: float) -> None:
    found = Listener("Hello.").chunk(np.array([0.0, value], np.float32))
    assert found == Finding("not_finite", fatal=True)


@pytest.mark.parametrize("chunks", [[], [np.zeros(0, np.float32)], [np.full(24_000, 1e-4, np.float32)]])
def test_silence_is_fatal(chunks: list[F32Mono]) -> None:
    listener = Listener("Hello.")
    assert [listener.chunk(chunk) for chunk in chunks] == [None] * len(chunks)
    assert listener.end() == Finding("silent", fatal=True)


# -- in a segment ----------------------------------------------------------------------------------


class Spoiling:
    """Speaks with the built-in voice and spoils the first `bad` takes."""

    def __init__(self, engine: BuiltinEngine, spoil: Callable[[F32Mono], F32Mono], bad: int) -> None:
        self._engine, self._spoil, self._bad = engine, spoil, bad
        self.seeds: list[int] = []

    def synthesize(
        self, segment: Segment, voice: VoiceFeatures | str, options: Options, stop: StopFlag
    ) -> Iterator[F32Mono]:
        self.seeds.append(options.seed)
        good = np.concatenate(list(self._engine.synthesize(segment, voice, options, stop)))
        whole = self._spoil(good) if len(self.seeds) <= self._bad else good
        for start in range(0, len(whole), 12_000):
            yield whole[start : start + 12_000].astype(np.float32)


def _not_a_number(good: F32Mono) -> F32Mono:
    spoiled = good.copy()
    spoiled[len(good) // 2] = np.nan
    return spoiled


SPOILS: dict[str, Callable[[F32Mono], F32Mono]] = {
    "silent": np.zeros_like,
    "nothing": lambda good: good[:0],
    "not_finite": _not_a_number,
    "stuck": lambda good: np.concatenate([good[:30_000], *[good[20_000:30_000]] * 5]),
    "cut_off": lambda good: good[: 24_000 + int(np.argmax(np.abs(good[24_000:30_000])))],
    "clipped": lambda good: np.clip(10 * good, -1, 1),
}


def speak(spoiling: Spoiling, folder: Path) -> tuple[int, int, F32Mono]:
    """Retries, seed, and the samples in the segment's file."""
    text = TEXTS[0]
    take = speak_segment(
        spoiling,
        Segment(0, text, 0, len(text)),
        "heart",
        lambda number: Options(seed=50 + number),
        job_dir=folder,
        stop=Stop(),
        on_chunk=lambda: None,
        listen=lambda: Listener(text),
    )
    pcm = np.fromfile(folder / "0000.pcm", "<i2")
    assert len(pcm) == take.samples
    assert sorted(path.name for path in folder.iterdir()) == ["0000.pcm"]
    return take.retries, take.seed, pcm.astype(np.float32) / 32768


@pytest.mark.parametrize("name", SPOILS)
def test_a_spoiled_take_is_made_again_with_another_seed(
    engine: BuiltinEngine, tmp_path: Path, name: str
) -> None:
    spoiling = Spoiling(engine, SPOILS[name], bad=1)
    retries, seed, heard = speak(spoiling, tmp_path)
    assert (retries, seed, spoiling.seeds) == (1, 51, [50, 51])
    assert doubt(heard, TEXTS[0]) is None


@pytest.mark.parametrize("name", SPOILS)
def test_after_the_last_take_a_doubtful_one_is_delivered_and_a_silent_one_is_an_error(
    engine: BuiltinEngine, tmp_path: Path, name: str
) -> None:
    spoiling = Spoiling(engine, SPOILS[name], bad=2)
    if name in ("silent", "nothing", "not_finite"):
        with pytest.raises(CosydError) as error:
            speak(spoiling, tmp_path)
        assert error.value.code == "bad_take" and list(tmp_path.iterdir()) == []
    else:
        assert speak(spoiling, tmp_path)[0] == 1
    assert spoiling.seeds == [50, 51]
