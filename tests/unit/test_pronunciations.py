"""The pronunciation dictionary and subtitles: database, CLI and how a job speaks by them."""

from __future__ import annotations

import json
import re
import sqlite3
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import queue
from pipeline.codes import CosydError
from pipeline.jobs import has_words
from pipeline.paths import StatePaths
from pipeline.pronunciations import add_entry, dictionary, list_entries, parse_entry, remove_entry
from pipeline.queue.values import Outcome
from pipeline.subtitles import cues, subtitles
from pipeline.text.dictionary import Entry
from pipeline.text.segment import plan
from pipeline.text.subtitles import WIDTH, cues_of, shown, srt, webvtt
from tests.unit.storekit import NOW, submit
from tests.unit.test_cli import cosyd


def said(text: str, *entries: Entry, language: str = "auto") -> str:
    planned = plan(text, longest_s=25, first_short=False, language=language, dictionary=entries)
    return " ".join(segment.text for segment in planned)


@pytest.mark.parametrize(
    ("text", "entry", "expected"),
    [
        ("Use SQL, sql and MySQL.", Entry("SQL", "sequel"), "Use sequel, sequel and MySQL."),
        ("他叫仇先生。", Entry("仇", "[q][iú]"), "他叫[q][iú]先生。"),
        ("重庆的重量", Entry("重庆", "[ch][óng]庆"), "[ch][óng]庆的重量"),
        ("Nginx 1.5", Entry("nginx", "engine x"), "engine x one point five"),
        ("He read it.", Entry("read", "[R][EH1][D]", "en"), "He [R][EH1][D] it."),
        ("读read这个词。", Entry("read", "[R][EH1][D]", "de"), "读read这个词。"),
        ("[h][ào] h", Entry("h", "aitch"), "[h][ào] aitch"),
        ("C++ is fun.", Entry("C++", "see plus plus"), "see plus plus is fun."),
        ("It costs 3 XB.", Entry("XB", "5 exabytes"), "It costs three five exabytes."),
    ],
)
def test_words_are_spoken_as_the_dictionary_says(text: str, entry: Entry, expected: str) -> None:
    assert said(text, entry) == expected


def test_the_longest_pattern_wins_and_places_stay_true() -> None:
    text = "New York and York."
    words = (Entry("York", "Yawk"), Entry("New York", "Big Apple"))
    planned = plan(text, longest_s=25, first_short=False, dictionary=words)
    assert [(s.text, s.start, s.end) for s in planned] == [("Big Apple and Yawk.", 0, len(text))]


def test_entries_are_checked_before_they_are_kept(conn: sqlite3.Connection) -> None:
    for pattern, replacement, language, field in (
        ("", "x", "", "pattern"),
        ("...", "x", "", "pattern"),
        ("x", None, "", "replacement"),
        ("x" * 61, "x", "", "pattern"),
        ("x", "y", "not a tag", "language"),
        ("好", "[h][aoo]", "", "text"),
    ):
        with pytest.raises(CosydError) as caught:
            parse_entry(pattern, replacement, language)
        assert (caught.value.code, caught.value.params["field"]) == ("bad_value", field)
    first = add_entry(conn, parse_entry("SQL", "sequel"))
    again = add_entry(conn, parse_entry("sql", " es  queue el ", "auto"))
    other = add_entry(conn, parse_entry("SQL", "[S][IY1]", "en-US"))
    assert first.replacement == "sequel"
    assert [(e.pattern, e.replacement, e.kind, e.language) for e in list_entries(conn)] == [
        ("sql", "es queue el", "text", ""),
        ("SQL", "[S][IY1]", "markup", "en"),
    ]
    assert dictionary(conn) == (Entry("sql", "es queue el"), Entry("SQL", "[S][IY1]", "en"))
    assert remove_entry(conn, again.id) and remove_entry(conn, other.id)
    assert not remove_entry(conn, other.id) and dictionary(conn) == ()


def test_the_command_line_adds_lists_and_removes(paths: StatePaths) -> None:
    assert "None yet" not in cosyd("dictionary", "list", paths=paths).output
    assert json.loads(cosyd("dictionary", "list", "--json", paths=paths).stdout) == []
    added = json.loads(cosyd("dictionary", "add", "重庆", "[ch][óng]庆", "--json", paths=paths).stdout)
    assert (added["pattern"], added["kind"]) == ("重庆", "markup")
    assert "重庆" in cosyd("dictionary", "list", paths=paths).stdout
    wrong = cosyd("dictionary", "add", "x", "[h][aoo]", paths=paths)
    assert wrong.exit_code == 2 and "[aoo]" in wrong.stderr and "[ao]" in wrong.stderr
    assert cosyd("dictionary", "remove", "重庆", paths=paths).exit_code == 0
    assert cosyd("dictionary", "remove", "重庆", paths=paths).exit_code != 0


def spoken_job(conn: sqlite3.Connection, text: str, samples: list[int]) -> str:
    """A finished recording of `text`, its segments as long as given."""
    job_id = submit(conn, text)
    claim = queue.claim(conn, job_id, "w", NOW, 15.0)
    assert claim is not None
    segments = plan(text, longest_s=25, first_short=False)
    assert len(segments) == len(samples)
    queue.plan_segments(conn, job_id, claim.token, segments, seed=1)
    for segment, count in zip(segments, samples, strict=True):
        queue.begin_segment(conn, job_id, segment.idx, claim.token)
        queue.finish_segment(
            conn, job_id, segment.idx, claim.token, samples=count, synthesis_s=1.0, first_audio_at=NOW
        )
    total = sum(samples) - 720 * (len(samples) - 1)
    seconds = total / 24_000
    outcome = Outcome("done", language="en", audio_path="x", audio_format="flac", audio_seconds=seconds)
    assert queue.end_job(conn, job_id, outcome, NOW, claim.token)
    return job_id


TEXT = "## News\n\nIt costs $5 & **more** than <b>that</b>, as they say.\n\n第二段，他[h][ào]学3年了。"


def test_a_recording_has_subtitles_with_the_times_of_its_segments(
    conn: sqlite3.Connection, paths: StatePaths
) -> None:
    job_id = spoken_job(conn, TEXT, [24_000, 72_000, 48_000])
    found = cues(conn, job_id)
    assert [cue.text for cue in found] == [
        "News",
        "It costs $5 & more than that, as they say.",
        "第二段，他学3年了。",
    ]
    assert [round(cue.start_s, 2) for cue in found] == [0.0, 0.97, 3.94]
    assert round(found[-1].end_s, 2) == 5.94
    text = cosyd("history", "--srt", job_id, paths=paths).stdout
    assert text.startswith("1\n00:00:00,000 --> 00:00:01,000\nNews\n\n2\n00:00:00,970 --> ")
    assert text == subtitles(conn, job_id, "srt")
    vtt = cosyd("history", "--vtt", job_id, paths=paths).stdout
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> ") and "$5 &amp; more" in vtt
    assert cosyd("history", "--srt", "0123456789abcdef", paths=paths).exit_code != 0


def test_without_its_segments_a_recording_still_has_subtitles(conn: sqlite3.Connection) -> None:
    job_id = spoken_job(conn, TEXT, [24_000, 72_000, 48_000])
    conn.execute("DELETE FROM jobs WHERE id=?", (job_id,))
    found = cues(conn, job_id)
    assert "".join(cue.text for cue in found).startswith("News")
    assert found[0].start_s == 0 and round(found[-1].end_s, 2) == 5.94
    assert all(a.end_s == b.start_s for a, b in pairwise(found))


@given(st.text(alphabet="abcde  ,.!\n你好。，#*[]<>&", max_size=400), st.floats(0, 1e4), st.floats(0.1, 1e3))
def test_cues_hold_every_word_are_short_and_in_order(text: str, start_s: float, length_s: float) -> None:
    found = cues_of(text, start_s, start_s + length_s)
    letters = [ch for ch in shown(text) if has_words(ch)]
    assert [ch for cue in found for ch in cue.text if has_words(ch)] == letters
    at = start_s
    for cue in found:
        assert cue.start_s == pytest.approx(at) and cue.end_s >= cue.start_s
        assert sum(2 if ord(ch) > 0x2E7F else 1 for ch in cue.text) <= WIDTH
        at = cue.end_s
    stamp = r"\d{2,}:\d{2}:\d{2}[,.]\d{3}"
    assert len(re.findall(f"{stamp} --> {stamp}", srt(found))) == len(found)
    assert "<" not in webvtt(found).replace("-->", "").replace("&lt;", "")
