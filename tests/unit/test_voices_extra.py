"""Styles and dialects, advice on clips, what a voice can be asked, and the cutting of a conversion."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.codes import CosydError
from pipeline.conversion import Converting, cut_spans
from pipeline.engines.base import Options, Segment
from pipeline.messages import catalogue
from pipeline.voices.abilities import voice_modes
from pipeline.voices.catalogue import Voice
from pipeline.voices.source import MAX_SECONDS, read_source, source_path, with_source
from pipeline.voices.styles import DIALECTS, STYLES, instruction

RATE = 16_000
CLONED = Voice("v-1", "Anna", "cosyvoice3", (), builtin=False, transcript=True)


def speech(seconds: float, level: float = 0.3, noise: float = 1e-4, rate: int = RATE) -> np.ndarray:
    """Syllables: bursts of a tone with pauses, over a floor of noise."""
    t = np.arange(int(seconds * rate)) / rate
    bursts = (np.sin(2 * np.pi * 2.5 * t) > -0.3).astype(np.float32)
    sound = level * bursts * np.sin(2 * np.pi * 220 * t) + noise * np.random.default_rng(1).standard_normal(
        len(t)
    )
    return sound.astype(np.float32)


# -- styles ---------------------------------------------------------------------------------------------


def test_every_style_and_dialect_has_a_name_in_both_languages() -> None:
    assert len(DIALECTS) == 18
    for language in ("en", "zh"):
        texts = catalogue(language)
        found = {key.split(".", 1)[1] for key in texts if key.startswith(("page.style.", "page.dialect."))}
        assert found == {f"style.{n}" for n in STYLES} | {f"dialect.{n}" for n in DIALECTS}


@pytest.mark.parametrize(
    ("dialect", "style", "words", "said"),
    [
        ("", "", "", None),
        ("sichuan", "", "", "请用四川话表达。"),
        ("", "happy", "", "请非常开心地说一句话。"),
        ("", " Happy ", "", "请非常开心地说一句话。"),
        ("sichuan", "happy", "慢一点", "请用四川话表达。请非常开心地说一句话。慢一点。"),
        ("", "happily, in a whisper", "", "happily, in a whisper。"),
        ("", "loud", "Now!", "Please say a sentence as loudly as possible. Now!"),
    ],
)
def test_an_instruction_is_made_of_names_and_words(
    dialect: str, style: str, words: str, said: str | None
) -> None:
    assert instruction(dialect, style, words) == said


def test_a_dialect_there_is_not_is_named() -> None:
    with pytest.raises(CosydError) as refused:
        instruction(dialect="klingon")
    assert refused.value.code == "bad_value" and "sichuan" in refused.value.params["allowed"]


# -- abilities ------------------------------------------------------------------------------------------


def test_what_a_voice_can_be_asked() -> None:
    heart = Voice("heart", "Heart", "builtin", ("en",))
    silent = Voice("v-2", "Ben", "cosyvoice3", (), builtin=False)
    said = {"engines": {"cosyvoice3": {"capabilities": {"modes": ["zero_shot", "cross_lingual"]}}}}
    assert voice_modes(heart, {}, cloning=True) == ("builtin",)
    assert voice_modes(CLONED, {}, cloning=False) == ()
    assert voice_modes(CLONED, {}, cloning=True) == ("zero_shot", "cross_lingual", "instruct", "convert")
    assert voice_modes(silent, {}, cloning=True) == ("cross_lingual", "instruct", "convert")
    assert voice_modes(CLONED, said, cloning=True) == ("zero_shot", "cross_lingual")
    assert voice_modes(CLONED, {"engines": {"cosyvoice3": None}}, cloning=True)[0] == "zero_shot"


# -- conversion -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.floats(1.0, 70.0),
    longest=st.floats(1.0, 40.0),
    begin=st.integers(0, 900),
    seed=st.integers(0, 9),
)
def test_pieces_cover_the_recording_without_gap_and_none_is_too_long(
    seconds: float, longest: float, begin: int, seed: int
) -> None:
    audio = np.random.default_rng(seed).standard_normal(int(seconds * 1000)).astype(np.float32)
    spans = cut_spans(audio, 1000, longest, begin)
    assert spans[0][0] == begin and spans[-1][1] == len(audio)
    assert [a[1] for a in spans[:-1]] == [b[0] for b in spans[1:]]
    assert all(0 < end - start <= max(2000, 1000 * min(longest, 25)) for start, end in spans)
    again = cut_spans(audio, 1000, longest, spans[-1][0])
    assert again == spans[-1:]  # what is cut anew from a finished piece on is the same


def test_a_recording_is_cut_where_it_is_quiet() -> None:
    audio = np.concatenate([speech(14), np.zeros(RATE, np.float32), speech(14)])
    (first, second) = cut_spans(audio, RATE, 25)
    assert first[0] == 0 and second == (first[1], 29_000) and 13_900 <= first[1] <= 15_100


def test_a_source_that_is_too_long_silent_or_no_sound_is_refused(tmp_path: Path) -> None:
    def reason(samples: np.ndarray, rate: int = RATE) -> str:
        soundfile.write(tmp_path / "a.wav", samples, rate)
        with pytest.raises(CosydError) as refused:
            read_source(tmp_path / "a.wav")
        assert refused.value.code == "bad_audio"
        return str(refused.value.params["reason"])

    assert reason(np.tile(speech(10), 19)) == "long_source" and MAX_SECONDS == 180
    assert reason(np.zeros(RATE * 3, np.float32)) == "silent"
    assert reason(speech(0.3)) == "short"
    assert reason(speech(3, rate=6000), 6000) == "rate"
    (tmp_path / "a.wav").write_bytes(b"no sound")
    with pytest.raises(CosydError):
        read_source(tmp_path / "a.wav")


def test_the_timing_of_a_source_is_kept(tmp_path: Path) -> None:
    audio = np.concatenate([np.zeros(RATE, np.float32), speech(3), np.zeros(RATE // 2, np.float32)])
    soundfile.write(tmp_path / "a.flac", np.stack([audio, audio], 1), RATE)
    kept, rate = read_source(tmp_path / "a.flac")
    assert (len(kept) / rate, rate) == (len(audio) / RATE, 24_000)


def test_a_source_stays_only_with_its_row(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "2026-11" / "0123456789abcdef"

    def refuse() -> str:
        assert source_path(folder).is_file()
        raise CosydError("queue_full", retry_after_s=1.0)

    with pytest.raises(CosydError):
        with_source(folder, speech(2), RATE, refuse)
    assert not folder.exists()
    assert with_source(folder, speech(2), RATE, lambda: "id") == "id"
    assert [p.name for p in folder.iterdir()] == ["source.flac"]


class Echo:
    """An engine that gives back what it is to convert."""

    def convert(self, audio, rate, voice, options, stop):  # type: ignore[no-untyped-def]
        assert rate == RATE and voice == "v-1" and options.mode == "convert"
        yield audio


def test_a_stretch_goes_to_the_engine_and_silence_does_not(tmp_path: Path) -> None:
    audio = np.concatenate([speech(2), np.zeros(2 * RATE, np.float32)])
    with_source(tmp_path / "job", audio, RATE, lambda: None)
    options = Options(1, mode="convert", speed=2.0)

    def convert(engine: object, start: int, end: int) -> np.ndarray:
        made = Converting(engine, tmp_path / "job").synthesize(
            Segment(0, "", start, end), "v-1", options, _Never()
        )
        return np.concatenate(list(made))

    np.testing.assert_allclose(convert(Echo(), 500, 1500), audio[RATE // 2 : RATE * 3 // 2], atol=1e-4)
    quiet = convert(Echo(), 2000, 4000)
    assert len(quiet) == 24_000 and not quiet.any()
    with pytest.raises(CosydError) as refused:
        convert(object(), 0, 1000)
    assert refused.value.code == "unsupported_mode"
    source_path(tmp_path / "job").unlink()
    with pytest.raises(CosydError) as gone:
        convert(Echo(), 0, 1000)
    assert gone.value.code == "bad_audio"


class _Never:
    def is_set(self) -> bool:
        return False


# -- registry -------------------------------------------------------------------------------------------


def test_a_voice_is_renamed_and_its_facts_are_told(tmp_path: Path) -> None:
    from pipeline.paths import StatePaths
    from pipeline.store.db import connect
    from pipeline.store.ensure import ensure_schema
    from pipeline.voices.registry import add_voice, change_voice, parse_new_voice, voice_facts

    paths = StatePaths.at(tmp_path, {})
    paths.ensure()
    ensure_schema(paths)
    conn: sqlite3.Connection = connect(paths.database, "accept")
    try:
        fields = {"name": "Oma", "consent": "agreed", "person": "Anna"}
        new = parse_new_voice(fields, 1.8e9, source="recording")
        voice = add_voice(conn, paths, new, speech(4), RATE, 1.8e9)
        facts = voice_facts(conn)[voice.id]
        assert facts["consent"] == {"choice": "agreed", "at": facts["created_at"], "person": "Anna"}
        assert (facts["seconds"], facts["source"]) == (4.0, "recording")
        assert change_voice(conn, voice.id, name="  Großmutter\n外婆 ")
        assert not change_voice(conn, "v-none", name="x")
        assert conn.execute("SELECT name FROM voices").fetchone()[0] == "Großmutter 外婆"
        for wrong in ("", "…", 5, "x" * 81):
            with pytest.raises(CosydError):
                change_voice(conn, voice.id, name=wrong)
        json.dumps(voice_facts(conn))
    finally:
        conn.close()
