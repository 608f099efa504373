"""The built-in engine with its real parts: hibari, espeak-ng, and whisper-tiny.en as the listener."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.audio.files import to_int16
from pipeline.audio.join import join
from pipeline.codes import CosydError
from pipeline.engines.base import MAX_CHUNK_SAMPLES, Options, Segment, VoiceFeatures
from pipeline.engines.builtin import BuiltinEngine
from pipeline.engines.builtin.espeak import espeak_path
from pipeline.engines.builtin.level import EDGE, PEAK, TARGET_DBFS, even_loudness, speech_level, trim_edges
from pipeline.engines.builtin.mandarin import read_numbers, to_pinyin
from pipeline.engines.builtin.stretch import change_tempo
from pipeline.profile import Config
from pipeline.text.segment import plan
from tests.speech import transcribe, word_error_rate

RATE = 24_000
GO = threading.Event()
needs_espeak = pytest.mark.skipif(espeak_path() is None, reason="needs espeak-ng")

ENGLISH = "The quick brown fox jumps over the lazy dog near the river bank, and then it sleeps in the sun."
CHINESE = "今天天气很好，我们一起去公园散步，然后去吃晚饭吧。"


@pytest.fixture(scope="module")
def engine() -> BuiltinEngine:
    loaded = BuiltinEngine()
    loaded.load(Config(), GO)
    return loaded


def say(engine: BuiltinEngine, text: str, *, voice: str = "heart", language: str = "auto",
        pause_s: float = 0.0, seed: int = 1, speed: float = 1.0) -> np.ndarray:  # fmt: skip
    segment = Segment(0, text, 0, len(text), pause_s, language)
    chunks = list(engine.synthesize(segment, voice, Options(seed=seed, speed=speed), GO))
    assert all(0 < len(chunk) <= MAX_CHUNK_SAMPLES and chunk.dtype == np.float32 for chunk in chunks)
    samples = np.concatenate(chunks)
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= PEAK + 1e-4
    return samples


PARAGRAPH = (
    "The old lighthouse stood on a cliff above the northern sea. Every evening the keeper climbed the narrow "
    "stairs and lit the lamp. Ships passed far away in the dark, and he counted them by their lights. In "
    "winter the wind was so strong that the windows shook all night. He liked the summer best, when people "
    "came to visit."
)


def test_a_paragraph_of_sixty_words_is_understood(engine: BuiltinEngine) -> None:
    assert 58 <= len(PARAGRAPH.split()) <= 64
    segments = plan(PARAGRAPH, longest_s=25, first_short=True)
    assert len(segments) == 5
    spoken = [to_int16(say(engine, s.text, pause_s=s.pause_s, language=s.language)) for s in segments]
    heard = transcribe(join(spoken))
    assert word_error_rate(PARAGRAPH, heard) <= 0.03, heard


def test_numbers_and_dates_are_read(engine: BuiltinEngine) -> None:
    text = "On March 5, 2024 it cost $1,299.99, and Dr. Smith paid for 42 of them at 7:30 pm."
    heard = transcribe(say(engine, text)).lower()
    assert "march" in heard and "2024" in heard
    assert "42" in heard or "forty two" in heard.replace("-", " ")
    assert "smith" in heard
    assert "42" in transcribe(say(engine, "☃ 42")) or "forty" in transcribe(say(engine, "☃ 42")).lower()


def test_the_same_seed_gives_the_same_samples(engine: BuiltinEngine) -> None:
    first, again, other = (say(engine, ENGLISH, seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert abs(len(first) - len(other)) < RATE / 10


@needs_espeak
@pytest.mark.parametrize("speed", [0.25, 0.5, 0.75, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize(
    ("text", "voice", "language"),
    [
        (ENGLISH, "heart", "auto"),
        (CHINESE, "heart", "auto"),
        ("Heute ist das Wetter so schön, dass wir alle in den Park gehen und dort essen.", "heart", "de"),
        (ENGLISH, "espeak", "auto"),
    ],
)
def test_the_duration_follows_the_speed(
    engine: BuiltinEngine, text: str, voice: str, language: str, speed: float
) -> None:
    usual = len(say(engine, text, voice=voice, language=language)) - 2 * EDGE
    heard = len(say(engine, text, voice=voice, language=language, speed=speed)) - 2 * EDGE
    assert heard == pytest.approx(usual / speed, rel=0.15)


@needs_espeak
@pytest.mark.parametrize(
    ("text", "language"),
    [
        (ENGLISH, "auto"),
        (CHINESE, "auto"),
        ("你好。", "zh"),
        ("我昨天买了一台 MacBook Pro laptop，觉得非常好用。", "zh"),
        ("Il fait beau aujourd'hui, nous allons au parc.", "fr"),
        ("Сегодня хорошая погода, мы идём в парк.", "auto"),
        ("오늘 날씨가 아주 좋아요.", "auto"),
        ("今日天氣好好，我哋去公園。", "yue"),
        ("Yes.", "en"),
    ],
)
def test_every_language_is_equally_loud(engine: BuiltinEngine, text: str, language: str) -> None:
    samples = say(engine, text, language=language)
    assert speech_level(samples) == pytest.approx(TARGET_DBFS, abs=1.5)


@needs_espeak
def test_both_halves_of_a_mixed_sentence_are_equally_loud_and_close_together(engine: BuiltinEngine) -> None:
    mixed = say(engine, "我们今天下午学习 how to make a cup of coffee 这句话。")
    loud = np.abs(mixed) > 0.01
    longest_gap = max(np.diff(np.flatnonzero(loud)))
    assert longest_gap < 0.35 * RATE
    thirds = [speech_level(part) for part in np.array_split(mixed, 3)]
    assert max(thirds) - min(thirds) < 3


def test_a_segment_begins_and_ends_with_30_ms_of_near_silence_and_its_pause(engine: BuiltinEngine) -> None:
    samples = say(engine, "Hello there, my friend.", pause_s=0.5)
    assert np.abs(samples[: EDGE // 2]).max() < 0.02
    assert not samples[len(samples) - RATE // 2 :].any()
    without = say(engine, "Hello there, my friend.")
    assert len(samples) - len(without) == RATE // 2
    assert np.abs(without[-EDGE // 2 :]).max() < 0.02


def test_a_cloned_voice_an_unknown_voice_and_another_mode_are_refused(engine: BuiltinEngine) -> None:
    segment = Segment(0, "Hello.", 0, 6)
    features = VoiceFeatures({})
    for voice, options, code in (
        (features, Options(seed=1), "unsupported_mode"),
        ("heart", Options(seed=1, mode="instruct"), "unsupported_mode"),
        ("nobody", Options(seed=1), "unknown_voice"),
    ):
        with pytest.raises(CosydError) as error:
            list(engine.synthesize(segment, voice, options, GO))
        assert error.value.code == code
    with pytest.raises(CosydError):
        engine.enrol(np.zeros(10, np.float32), RATE, None)


@pytest.mark.parametrize("text", ["ʼ", "☃", "..."])
def test_what_cannot_be_spoken_is_an_error_and_never_silence(engine: BuiltinEngine, text: str) -> None:
    with pytest.raises(CosydError) as error:
        say(engine, text)
    assert error.value.code == "unsupported_mode"
    assert "language" in error.value.params


@needs_espeak
def test_japanese_with_kanji_is_refused_since_it_would_be_misread(engine: BuiltinEngine) -> None:
    assert len(say(engine, "きょうはとてもいいてんきです。")) > RATE
    with pytest.raises(CosydError) as error:
        say(engine, "明日は東京で会議があります。")
    assert error.value.params["language"] == "ja"


def test_without_espeak_it_speaks_english_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bare = BuiltinEngine()
    bare.load(Config(), GO)
    assert bare.capabilities().languages == ("en",)
    assert bare.capabilities().voices == ("heart",)
    assert len(say(bare, "Hello there.")) > RATE / 2
    with pytest.raises(CosydError) as error:
        say(bare, "你好。")
    assert error.value.code == "unsupported_mode"
    assert error.value.params["language"] == "zh"
    assert error.value.params["reason"] == "needs_espeak"
    mixed = "Beijing is called 北京 in Chinese."
    chunks = bare.synthesize(Segment(0, mixed, 0, len(mixed)), "heart", Options(seed=1), GO)
    with pytest.raises(CosydError) as error:  # before any sound, and never without the part it cannot read
        next(chunks)
    assert (error.value.params["language"], error.value.params["reason"]) == ("zh", "needs_espeak")
    bare.close()


@needs_espeak
@pytest.mark.parametrize("text", ["Tokyo is written 東京です there.", "Fine so far. ܐܒܓ ܕܗܘ. And so on."])
def test_a_mixed_text_with_an_unreadable_part_is_refused_before_any_sound(
    engine: BuiltinEngine, text: str
) -> None:
    with pytest.raises(CosydError) as error:
        next(engine.synthesize(Segment(0, text, 0, len(text)), "heart", Options(seed=1), GO))
    assert (error.value.code, error.value.params["reason"]) == ("unsupported_mode", "language")


def test_a_stop_is_heard_between_chunks(engine: BuiltinEngine) -> None:
    stop = threading.Event()
    chunks = engine.synthesize(Segment(0, ENGLISH, 0, len(ENGLISH)), "heart", Options(seed=1), stop)
    next(chunks)
    stop.set()
    assert list(chunks) == []


def fake_espeak(folder: Path, body: str) -> Path:
    """A program named espeak-ng that knows all languages and does as `body` says."""
    program = folder / "espeak-ng"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = --voices ]; then echo h; echo " 5 cmn-latn-pinyin"; echo " 5 de"; exit; fi\n'
        + body
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_running_espeak_is_killed_by_a_stop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: BuiltinEngine
) -> None:
    fake_espeak(
        tmp_path, f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 60\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slow = BuiltinEngine()
    stop = threading.Event()

    def stop_when_it_runs() -> None:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        stop.set()

    watcher = threading.Thread(target=stop_when_it_runs)
    watcher.start()
    chunks = list(slow.synthesize(Segment(0, "Guten Tag.", 0, 10, 0, "de"), "heart", Options(seed=1), stop))
    watcher.join()
    assert chunks == []
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_espeak_that_fails_is_an_error_and_text_is_never_in_its_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_espeak(tmp_path, f'printf "%s|" "$@" > {tmp_path}/args; cat > {tmp_path}/stdin; exit 3\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    failing = BuiltinEngine()
    with pytest.raises(CosydError) as error:
        say(failing, "--voices $(id) Geheim", language="de")
    assert error.value.code == "engine_failed"
    assert "Geheim" not in (tmp_path / "args").read_text()
    assert (tmp_path / "stdin").read_text() == "--voices $(id) Geheim"


def test_close_may_be_called_twice_and_load_again(engine: BuiltinEngine) -> None:
    other = BuiltinEngine()
    other.close()
    footprint = other.load(Config(), GO)
    other.trim()
    other.close()
    other.close()
    with pytest.raises(CosydError):
        say(other, "Hello.")
    assert footprint.vram_bytes is None
    fresh = subprocess.run(
        [
            sys.executable,
            "-c",
            "import threading; from pipeline.engines.builtin import BuiltinEngine\n"
            "from pipeline.profile import Config\n"
            "print(BuiltinEngine().load(Config(), threading.Event()).rss_bytes)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 20e6 < int(fresh.stdout) < 250e6


def test_the_first_sound_waits_for_one_sentence_only(
    engine: BuiltinEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs is in tests/bench: about 25 ms for a short one."""
    english = engine._english
    assert english is not None
    spoken = []
    inner = english._hibari.from_ids
    monkeypatch.setattr(
        english._hibari, "from_ids", lambda *args: (spoken.append(len(args[0])), inner(*args))[1]
    )
    text = "Hello there, how are you? I am fine. And the cat is fine too."
    chunks = engine.synthesize(Segment(0, text, 0, len(text)), "heart", Options(seed=1), GO)
    next(chunks)
    assert len(spoken) == 1
    assert len(list(chunks)) > 2 and len(spoken) >= 3


def test_memory_does_not_grow_over_utterances_of_varied_length(rounds: object) -> None:
    count = rounds(80, 500)  # type: ignore[operator]
    code = (
        "import random, sys, threading\n"
        "from pipeline.child import own_memory_bytes\n"
        "from pipeline.engines.base import Options, Segment\n"
        "from pipeline.engines.builtin import BuiltinEngine\n"
        "from pipeline.profile import Config\n"
        "words = 'the quick brown fox jumps over lazy dog near river bank while people walked home'.split()\n"
        "engine, stop, rng = BuiltinEngine(), threading.Event(), random.Random(1)\n"
        "engine.load(Config(), stop)\n"
        "for n in range(int(sys.argv[1])):\n"
        "    text = ' '.join(rng.choices(words, k=rng.randint(1, 40))) + '.'\n"
        "    segment = Segment(0, text, 0, len(text))\n"
        "    for _ in engine.synthesize(segment, 'heart', Options(seed=n), stop): pass\n"
        "    print(own_memory_bytes())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(count)], capture_output=True, text=True, check=True
    )
    sizes = np.array([int(line) for line in done.stdout.split()][20:], float)
    pairs = [(sizes[j] - sizes[i]) / (j - i) for i in range(len(sizes)) for j in range(i + 1, len(sizes))]
    slope = float(np.median(pairs))
    print(f"Theil-Sen slope {slope:.0f} B an utterance, spread {np.ptp(sizes) / 1e6:.1f} MB")
    assert slope < (2048 if count >= 500 else 16_384)
    assert np.ptp(sizes) < 40e6


@pytest.mark.parametrize("factor", [0.4, 0.8, 1.5, 2.6])
def test_tempo_changes_length_and_not_pitch(factor: float) -> None:
    t = np.arange(2 * RATE) / RATE
    tone = (0.5 * np.sin(2 * np.pi * 200 * t)).astype(np.float32)
    changed = change_tempo(tone, factor)
    assert len(changed) == pytest.approx(len(tone) / factor, rel=0.03)
    middle = changed[len(changed) // 4 : len(changed) * 3 // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * RATE / len(middle) == pytest.approx(200, rel=0.02)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)


def test_level_ignores_pauses_and_loud_peaks_are_bent() -> None:
    rng = np.random.default_rng(1)
    speech = (0.1 * rng.standard_normal(RATE)).astype(np.float32)
    with_pause = np.concatenate([speech, np.zeros(2 * RATE, np.float32), speech])
    assert speech_level(with_pause) == pytest.approx(-20, abs=0.2)
    assert speech_level(np.zeros(RATE, np.float32)) == float("-inf")
    spiky = speech.copy()
    spiky[::997] = 5.0
    assert np.abs(even_loudness(spiky)).max() <= PEAK
    assert len(trim_edges(np.zeros(RATE, np.float32))) == 0
    assert len(trim_edges(with_pause)) == pytest.approx(len(with_pause) + 2 * EDGE, abs=240)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("会议定在2025-09-28下午", "会议定在二零二五年9月28日下午"),
        ("1998年花了1998块钱", "一九九八年花了1998块钱"),
        ("请拨打13800138000", "请拨打一三八零零一三八零零零"),
        ("总机010-5550-0199", "总机零一零五五五零零一九九"),
        ("优惠后￥1,299.50", "优惠后1299点五零元"),
        ("从8%涨到12.5%", "从百分之8涨到百分之12点五"),
        ("高铁08:05发车", "高铁08点05分发车"),
        ("室外-3℃", "室外零下3摄氏度"),
        ("第3-5页", "第3到5页"),
        ("请升级到v2.10.3版本", "请升级到v2点10点三版本"),
    ],
)
def test_chinese_numbers_are_prepared(text: str, expected: str) -> None:
    assert read_numbers(text) == expected


def test_han_becomes_pinyin_with_tones_by_phrase() -> None:
    assert to_pinyin("银行行长。") == "yin2 hang2 hang2 zhang3 ."
    assert to_pinyin("我有42个，好的") == "wo3 you3 42 ge4 , hao3 de5"


@needs_espeak
def test_given_syllables_are_spoken_as_the_voice_speaks_them(engine: BuiltinEngine) -> None:
    as_marked = say(engine, "他[h][ǎo]。", language="zh")
    np.testing.assert_array_equal(as_marked, say(engine, "他好。", language="zh"))
    other = say(engine, "他[h][ào]。", language="zh")
    assert len(other) != len(as_marked) or not np.array_equal(other, as_marked), "another tone"


def test_given_phonemes_are_heard_instead_of_letters(engine: BuiltinEngine) -> None:
    heard = transcribe(say(engine, "We looked at the [M][UW1][N] and the [S][T][AA1][R][Z]."))
    assert word_error_rate("We looked at the moon and the stars.", heard) <= 0.15, heard


@needs_espeak
def test_espeak_speaks_given_phonemes_too(engine: BuiltinEngine) -> None:
    marked = say(engine, "the [M][UW1][N]", voice="espeak", language="en")
    plain = say(engine, "the moon", voice="espeak", language="en")
    assert abs(len(marked) - len(plain)) < 0.3 * len(plain)


def test_a_sound_is_no_word_but_a_short_break(engine: BuiltinEngine) -> None:
    heard = transcribe(say(engine, "Well [sigh] that is all there is to say."))
    assert "sigh" not in heard.lower()
