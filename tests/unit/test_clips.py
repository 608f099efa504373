"""From a recording to a clip: verdicts, the best part, level; and uploads that go after a day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.recording import Recording
from pipeline.audio.speech import Activity, find_speech
from pipeline.codes import CosydError
from pipeline.messages import catalogue
from pipeline.paths import StatePaths
from pipeline.voices import uploads
from pipeline.voices.cut import LEAST_S, MOST_S, best_cuts, outer
from pipeline.voices.quality import CHECKS
from pipeline.voices.reference import LEVEL, PEAK, examine, finished, make_clip
from pipeline.voices.verdict import report_view
from tests.unit.clipkit import RATE, speechlike

NOW = 1.8e9


def recording(audio: Any, **known: Any) -> Recording:
    return Recording(np.asarray(audio, np.float32), **({"rate": RATE, "channels": 1} | known))


def still(seconds: float, noise: float = 1e-4) -> Any:
    return noise * np.random.default_rng(3).standard_normal(int(seconds * RATE))


def verdicts(audio: Any, transcript: str | None = None, **known: Any) -> dict[str, str]:
    report = examine(recording(audio, **known), max_seconds=10, transcript=transcript)
    return {c.name: c.advice or c.verdict for c in report.checks if c.verdict != "good"}


# -- verdicts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("audio", "transcript", "known", "found"),
    [
        (speechlike(6), "The weather is fine today, so I will walk through the park.", {}, {}),
        (speechlike(6), None, {}, {}),
        (speechlike(6), None, {"clipped": 0.01}, {"clipping": "clipped"}),
        (speechlike(6, noise=0.03), None, {}, {"noise": "noisy"}),
        (speechlike(6, level=0.005, noise=2e-5), None, {}, {"level": "quiet"}),
        (speechlike(2), None, {}, {"length": "short"}),
        (speechlike(6), "No.", {}, {"words": "words"}),
        (speechlike(4), "word " * 60, {}, {"words": "words"}),
        (speechlike(6), None, {"rate": 8000}, {"rate": "telephone"}),
        (speechlike(6), None, {"cut_off": True}, {"whole": "cut_off"}),
        (still(6, 0.2), None, {}, {"speech": "no_speech"}),
        (0.3 * np.sin(np.arange(6 * RATE) / 20), None, {}, {"speech": "no_speech"}),
        (np.zeros(3 * RATE), None, {}, {"speech": "bad"}),
        (speechlike(0.5), None, {}, {"length": "bad"}),
        (speechlike(14), "word " * 35, {}, {"length": "bad"}),
        (speechlike(14), None, {}, {"length": "cut"}),
    ],
)  # fmt: skip
def test_each_check_has_its_verdict(
    audio: Any, transcript: str | None, known: dict[str, Any], found: dict[str, str]
) -> None:
    assert verdicts(audio, transcript, **known) == found


def test_every_verdict_and_advice_has_words_in_both_languages() -> None:
    keys = {f"voice.check_{name}" for name in CHECKS} | {
        f"voice.verdict_{v}" for v in ("good", "fair", "bad")
    }
    codes = ("clipped", "noisy", "quiet", "short", "words", "telephone", "cut_off", "no_speech", "cut")
    keys |= {f"voice.advice_{code}" for code in codes}
    reasons = ("short", "long", "rate", "silent", "empty", "broken", "unreadable", "cut_off", "slow", "span")
    keys |= {f"error.bad_audio_{reason}" for reason in reasons}
    for language in ("en", "zh"):
        assert keys <= set(catalogue(language))
        for audio in (speechlike(14), speechlike(2), np.zeros(RATE)):
            report = examine(recording(audio, rate=8000, cut_off=True), max_seconds=10, transcript="a " * 99)
            view = report_view(report, language)
            json.dumps(view)
            assert all(
                ("{" not in c["message"]) and (c["verdict"] == "good") == (not c["message"])
                for c in view["checks"]
            )


def test_soft_speech_is_turned_up_and_hot_speech_down_to_one_level() -> None:
    for scale in (0.005, 0.1, 1.0, 30.0):
        clip = make_clip(
            recording(speechlike(5) * scale + 0.2 * scale), max_seconds=10, transcript=None
        ).audio
        assert abs(clip.mean()) < 0.002 and np.abs(clip).max() <= PEAK + 1e-6
        spans = find_speech(clip, RATE).spans
        loud = np.concatenate([clip[a * 480 : b * 480] for a, b in spans])
        assert np.sqrt(np.mean(np.square(loud))) == pytest.approx(LEVEL, rel=0.1)
        assert clip[0] == clip[-1] == 0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-6, 1e6), st.integers(1, RATE))
def test_no_sound_is_finished_into_something_that_is_none(seed: int, scale: float, count: int) -> None:
    audio = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * np.float32(scale)
    done = finished(audio)
    assert np.isfinite(done).all() and np.abs(done).max() <= PEAK + 1e-6 and len(done) == count


# -- the best part --------------------------------------------------------------------------------------


def test_the_best_part_is_clean_speech_and_no_word_is_halved() -> None:
    good = speechlike(8.5)
    cases = [
        np.concatenate([still(6), 0.02 * speechlike(4, seed=2), still(4), good, still(9)]),
        np.concatenate([speechlike(1), still(3), speechlike(1), still(3), good, still(2), speechlike(2)]),
    ]
    for audio in cases:
        at = next(i for i in range(0, len(audio), RATE // 10) if np.array_equal(audio[i : i + 99], good[:99]))
        best = best_cuts(find_speech(audio.astype(np.float32), RATE), len(audio) / RATE)[0]
        assert best.start == pytest.approx(at / RATE, abs=0.35) and LEAST_S <= best.seconds <= MOST_S
    report = examine(recording(cases[0]), max_seconds=10, transcript=None)
    assert report.shortened and report.cut == report.suggestions[0] and report.refusal is None


def test_two_levels_are_not_mixed_when_there_is_a_choice() -> None:
    far = speechlike(5, seed=9) * 0.05
    audio = np.concatenate([far, still(0.5), speechlike(7), still(0.5), far]).astype(np.float32)
    best = best_cuts(find_speech(audio, RATE), len(audio) / RATE)[0]
    assert best.start > 4.5 and best.end < 13.5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(3, 1500), st.integers(10, 400)), max_size=12),
    st.floats(1.0, 12.0),
    st.integers(0, 2**31),
)
def test_parts_lie_within_the_recording_and_the_limit(
    lengths: list[tuple[int, int]], most_s: float, seed: int
) -> None:
    spans, at = [], 20
    for sound, pause in lengths:
        spans.append((at, at + sound))
        at += sound + pause
    levels = np.random.default_rng(seed).normal(-20, 6, at + 20)
    activity = Activity(levels, tuple(spans), -60.0, -18.0, True)
    total = len(levels) * 0.02
    cuts = best_cuts(activity, total, most_s)
    assert 1 <= len(cuts) <= 3
    for cut in cuts:
        assert 0 <= cut.start < cut.end <= total + 1e-6 and cut.seconds <= min(most_s, MOST_S) + 0.01
    for i, cut in enumerate(cuts):
        for other in cuts[:i]:
            assert min(cut.end, other.end) - max(cut.start, other.start) < 1.0
    whole = outer(activity, total)
    assert 0 <= whole.start < whole.end <= total


def test_a_chosen_part_is_taken_and_one_that_is_not_there_is_refused() -> None:
    audio = np.concatenate([speechlike(5), still(1), speechlike(5, seed=4), still(1)])
    clip = make_clip(recording(audio), max_seconds=10, transcript="Some words.", span=(5.3, 99.0))
    assert clip.report.cut.start == pytest.approx(5.9, abs=0.15) and clip.report.cut.end < 11.3
    for span, why in (
        ((3.0, 3.0), "span"),
        ((50.0, 60.0), "span"),
        ((5.1, 5.9), "silent"),
        ((0.0, 11.0), "long"),
    ):
        with pytest.raises(CosydError) as refused:
            make_clip(recording(audio), max_seconds=8, transcript=None, span=span)
        assert refused.value.params["reason"] in (why, "short")


# -- uploads --------------------------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths.at(tmp_path, {})


def test_an_upload_is_kept_for_a_day_and_then_it_is_gone(paths: StatePaths) -> None:
    known = recording(speechlike(2), clipped=0.25, cut_off=True, rate=8000, channels=2, decoder="ffmpeg")
    upload = uploads.keep_upload(paths, known, NOW)
    again = uploads.load_upload(paths, upload)
    assert np.abs(again.audio - known.audio).max() < 1e-4
    assert (again.clipped, again.cut_off, again.rate, again.decoder) == (0.25, True, 8000, "ffmpeg")
    assert [f.name for f in paths.uploads.iterdir()] == [upload] and paths.uploads.stat().st_mode & 0o77 == 0
    assert uploads.sweep_uploads(paths, NOW + 86_399) == 0
    assert uploads.sweep_uploads(paths, NOW + 86_401) == 1 and list(paths.uploads.iterdir()) == []
    for wrong in (upload, "../outputs", "u-" + "0" * 24, ""):
        with pytest.raises(CosydError) as gone:
            uploads.load_upload(paths, wrong)
        assert gone.value.code == "not_found" and not uploads.remove_upload(paths, wrong)


def test_uploads_are_few_and_what_was_half_written_goes_too(
    paths: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST", 2)
    kept = [uploads.keep_upload(paths, recording(speechlike(0.2)), NOW + i) for i in range(4)]
    assert {f.name for f in paths.uploads.iterdir()} == set(kept[2:])
    assert uploads.remove_upload(paths, kept[2])
    (paths.uploads / ("u-" + "a" * 24)).mkdir()
    (paths.uploads / "My files").mkdir()
    (paths.uploads / kept[3] / "facts.json").write_text("{")
    with pytest.raises(CosydError) as refused:
        uploads.load_upload(paths, kept[3])
    assert refused.value.params["reason"] == "changed"
    assert uploads.sweep_uploads(paths, NOW * 2) == 2
    assert [f.name for f in paths.uploads.iterdir()] == ["My files"]
