"""On the page: a voice to a file and back, a person forgotten, words and their readings, subtitles."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.audio.tags import ai_tag
from pipeline.store.db import connect
from pipeline.voices.registry import add_voice, parse_new_voice
from tests.browser.conftest import Visitor
from tests.integration.rig import Rig
from tests.integration.service import wait_for

pytestmark = pytest.mark.browser


def new_voice(rig: Rig, name: str, person: str) -> str:
    sound = (0.3 * np.sin(np.arange(3 * 24_000) / 20)).astype(np.float32)
    fields = {"name": name, "consent": "agreed", "person": person, "tags": "calm"}
    conn = connect(rig.paths.database, "accept")
    try:
        new = parse_new_voice(fields, time.time())
        return add_voice(conn, rig.paths, new, sound, 24_000, time.time()).id
    finally:
        conn.close()


def test_a_voice_leaves_as_a_file_and_comes_back_with_a_consent(
    visitor: Visitor, rig: Rig, tmp_path: Path
) -> None:
    voice = new_voice(rig, "Anna reads", "Anna")
    visit = visitor.open(width=390, height=844)
    visit.tab("Voices")
    card = visit.page.locator(f'.cosyd-voice-own[data-id="{voice}"]')
    with visit.page.expect_download() as leaving:
        card.get_by_text("Export").click()
    assert leaving.value.suggested_filename == "Anna-reads.cosyd-voice.zip"
    leaving.value.save_as(file := tmp_path / "voice.zip")
    visit.page.click("#cosyd-import-open")
    visit.page.set_input_files(".cosyd-import input[type=file]", str(file))
    visit.page.click(".cosyd-import button[type=submit]")
    visit.page.locator("#cosyd-notice", has_text="Say whose voice it is").wait_for()
    visit.page.check('.cosyd-import input[value="own"]')
    visit.page.click(".cosyd-import button[type=submit]")
    told = visit.page.locator("#cosyd-voices > .cosyd-verdict")
    told.wait_for()
    assert "Anna agreed" in told.inner_text() or "Anna" in told.inner_text()
    rows = rig.rows("SELECT source, consent FROM voices WHERE name = 'Anna reads' ORDER BY rowid")
    assert [row["source"] for row in rows] == ["upload", "import"] and '"own"' in rows[1]["consent"]
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"no zip at all")
    visit.page.click("#cosyd-import-open")
    visit.page.set_input_files(".cosyd-import input[type=file]", str(bad))
    visit.page.check('.cosyd-import input[value="synthetic"]')
    visit.page.click(".cosyd-import button[type=submit]")
    visit.page.locator(".cosyd-import .cosyd-verdict", has_text="This is no voice file").wait_for()


def test_a_person_is_forgotten_with_what_was_made_and_told_so(visitor: Visitor, rig: Rig) -> None:
    voices = [new_voice(rig, name, "Berta") for name in ("Berta one", "Berta two")]
    visit = visitor.open("zh-CN")
    visit.tab("音色")
    card = visit.page.locator(f'.cosyd-voice-own[data-id="{voices[0]}"]')
    card.get_by_text("删除", exact=True).click()
    sure = card.locator(".cosyd-sure")
    sure.wait_for()
    assert "Berta one" in sure.inner_text() and "Berta two" in sure.inner_text()
    sure.locator('input[value="all"]').check()
    sure.get_by_text("彻底删除", exact=True).click()
    told = visit.page.locator("#cosyd-voices > .cosyd-verdict")
    told.wait_for()
    assert "已彻底删除" in told.inner_text() and "参考音频 2 个" in told.inner_text()
    assert not any((rig.paths.voices / voice).exists() for voice in voices)
    assert visit.trouble == []


@pytest.mark.parametrize(("locale", "tab", "width"), [("en-US", "Settings", 1280), ("zh-CN", "设置", 390)])
def test_a_word_gets_its_reading_is_heard_and_taken_back(
    visitor: Visitor, rig: Rig, locale: str, tab: str, width: int
) -> None:
    visit = visitor.open(locale, width=width, height=844)
    visit.tab(tab)
    visit.page.fill("#cosyd-word", "SQL")
    visit.page.fill("#cosyd-word-spoken", "[M][XY9]")
    visit.page.click(".cosyd-word-form button[type=submit]")
    visit.page.locator('#cosyd-notice[data-kind="error"]', has_text="XY9").wait_for()
    visit.page.fill("#cosyd-word-spoken", "sequel")
    visit.page.click(".cosyd-word-form button[type=submit]")
    row = visit.page.locator('.cosyd-word[data-word="SQL"]')
    row.wait_for()
    assert "sequel" in row.inner_text() and visit.page.input_value("#cosyd-word") == ""
    before = len(rig.rows("SELECT 1 FROM generations WHERE text = 'SQL'"))
    row.locator(".cosyd-play").click()
    wait_for(
        lambda: len(rig.rows("SELECT 1 FROM generations WHERE text = 'SQL'")) > before, 30, "the word spoken"
    )
    row.locator("button.cosyd-danger").click()
    row.wait_for(state="detached")
    assert rig.http.get("/api/pronunciations").json()["pronunciations"] == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_recording_has_subtitles_and_says_that_it_is_generated(visitor: Visitor, rig: Rig) -> None:
    job = rig.http.post("/api/jobs", json={"text": "Toast 81. Butter 82.", "voice": "numbers"}).json()["id"]
    wait_for(lambda: rig.rows("SELECT 1 FROM generations WHERE id = ?", job), 30, "it")
    visit = visitor.open(width=390, height=844)
    visit.tab("Recordings")
    visit.page.locator("#cosyd-history .cosyd-item").first.evaluate("item => { item.id = 'before' }")
    visit.page.fill("#cosyd-search", "Butter")
    visit.until("!document.getElementById('before')")  # the list is drawn anew, which closes its menus
    item = visit.page.locator("#cosyd-history .cosyd-item", has_text="Butter 82").first
    item.locator(".cosyd-downloads summary").click()
    for format, begin in (("srt", b"1\n00:00:00,000"), ("vtt", b"WEBVTT")):
        with visit.page.expect_download() as coming:
            item.get_by_label(f"Download subtitles as {format.upper()}").click()
        path = coming.value.path()
        assert coming.value.suggested_filename == f"cosyd-{job}.{format}"
        assert path.read_bytes().startswith(begin) and b"Butter 82" in path.read_bytes()
    with visit.page.expect_download() as coming:
        item.get_by_label("Download as flac", exact=True).click()
    assert ai_tag(job).encode() in coming.value.path().read_bytes()[:4096]
