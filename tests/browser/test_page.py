"""The page in a real browser: types, generates, hears, stops; both languages, desktop and phone."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
import pytest

from pipeline.store.db import connect
from pipeline.voices.registry import add_voice, parse_new_voice, remove_voice
from tests.browser.conftest import Visitor
from tests.integration.rig import Rig
from tests.integration.service import wait_for

pytestmark = pytest.mark.browser

PLAYER = 'document.querySelector("#cosyd-player")'


def test_typing_and_generating_is_heard(visitor: Visitor) -> None:
    visit = visitor.open()
    visit.write("The kettle is on, and the tea will be ready in a minute.")
    assert "about" in visit.page.inner_text("#cosyd-count")
    visit.page.click("#cosyd-generate")
    visit.until(f"{PLAYER} && {PLAYER}.currentTime > 0.3 && !{PLAYER}.paused")
    visit.says("Done in")
    visit.until(f"{PLAYER}.ended || {PLAYER}.dataset.whole")
    visit.until(f"Number.isFinite({PLAYER}.duration) && {PLAYER}.duration > 1.5")
    assert visit.page.locator("#cosyd-now .cosyd-downloads").count() == 1
    assert visit.elsewhere == [] and visit.trouble == []


def test_ctrl_enter_generates_and_sound_starts_before_the_text_is_done(visitor: Visitor, rig: Rig) -> None:
    visit = visitor.open()
    visit.choose_voice("Numbers")
    visit.write("Sentence 1. " * 12 + "[gate ctrl] 2.")
    visit.page.press("#cosyd-text textarea", "Control+Enter")
    visit.until(f"{PLAYER} && {PLAYER}.currentTime > 0.2")
    visit.says("Piece")
    assert visit.page.is_visible("#cosyd-stop") and not visit.page.is_visible("#cosyd-generate")
    (rig.paths.root / "ctrl").touch()
    visit.says("Done in")
    assert visit.page.is_visible("#cosyd-generate")


def test_stop_stops_the_work(visitor: Visitor, rig: Rig) -> None:
    visit = visitor.open("zh-CN")
    visit.choose_voice("Numbers")
    visit.write("Sentence 3. " * 5 + "[gate stop] 4. " + "Sentence 5. " * 20)
    visit.page.click("#cosyd-generate")
    wait_for(lambda: rig.rows("SELECT 1 FROM jobs WHERE state = 'running'"), 10, "its start")
    visit.page.click("#cosyd-stop")
    (rig.paths.root / "stop").touch()
    visit.says("已停止生成")
    job = rig.rows("SELECT state, source FROM jobs ORDER BY created_at DESC LIMIT 1")[0]
    assert job == {"state": "cancelled", "source": "page"}
    assert visit.page.evaluate(f"{PLAYER}.paused") is True


def test_trouble_is_one_sentence(visitor: Visitor) -> None:
    visit = visitor.open()
    visit.page.click("#cosyd-generate")
    visit.page.locator("#cosyd-notice", has_text="Write something first").wait_for()
    visit.write("hello")
    visit.page.fill("#cosyd-seed input, #cosyd-seed textarea", "-4")
    visit.page.click("#cosyd-generate")
    visit.page.locator("#cosyd-notice", has_text="whole number").wait_for()
    visit.page.fill("#cosyd-seed input, #cosyd-seed textarea", "")
    visit.write("x" * 16_385)
    assert "Too long by 1" in visit.page.inner_text("#cosyd-count")
    visit.page.click("#cosyd-generate")
    visit.page.locator("#cosyd-notice", has_text="16385").wait_for()
    visit.choose_voice("Numbers")
    visit.write("[raise] 1")
    visit.page.click("#cosyd-generate")
    visit.until('document.querySelector("#cosyd-now")?.dataset.state === "failed"')
    assert "Traceback" not in visit.page.inner_text("body")


def test_recordings_are_searched_played_used_again_and_deleted(visitor: Visitor, rig: Rig) -> None:
    for text in ("窗外正在下雨 71", "The rain has stopped 72"):
        made = rig.http.post("/api/jobs", json={"text": text, "voice": "numbers", "seed": 9}).json()["id"]
        found = "SELECT 1 FROM generations WHERE id = ?"
        wait_for(lambda job=made, sql=found: rig.rows(sql, job), 10, "the recording")
    visit = visitor.open()
    visit.tab("Recordings")
    visit.page.fill("#cosyd-search", "下雨")
    items = visit.page.locator("#cosyd-history .cosyd-item")
    visit.until('document.querySelectorAll("#cosyd-history .cosyd-item").length === 1')
    assert "窗外正在下雨 71" in items.first.inner_text() and "Numbers" in items.first.inner_text()
    items.first.locator(".cosyd-play").click()
    visit.until('document.querySelector("#cosyd-history audio")?.duration > 0.3')
    with visit.page.expect_download() as download:
        items.first.locator("summary").click()
        items.first.locator('.cosyd-downloads a:has-text("flac")').click()
    assert download.value.suggested_filename.endswith(".flac")
    items.first.get_by_text("Use again").click()
    visit.until('document.querySelector("#cosyd-text textarea")?.value === "窗外正在下雨 71"')
    assert visit.page.input_value("#cosyd-seed input, #cosyd-seed textarea") == "9"
    assert visit.page.input_value("#cosyd-voice input").startswith("Numbers")
    visit.tab("Recordings")
    items.first.get_by_text("Delete").click()
    items.first.get_by_text("Really delete?").click()
    visit.page.locator("#cosyd-history .cosyd-empty").wait_for()
    assert rig.http.get("/api/history", params={"q": "下雨"}).json()["recordings"] == []


def test_the_status_is_live_and_its_buttons_act(visitor: Visitor, rig: Rig) -> None:
    assert rig.web is not None
    visit = visitor.open("zh-CN")
    visit.page.locator("#cosyd-strip", has_text="9 GB").wait_for()
    visit.tab("状态")
    visit.page.locator("#cosyd-status", has_text="9 GB").wait_for()
    rig.send_state(
        ram={"available_bytes": 300 * 1024**2, "total_bytes": 16 * 1024**3, "level": "low"},
        vram={"free_bytes": 2 * 1024**3, "total_bytes": 8 * 1024**3, "level": "ok", "name": "RTX 3060"},
        pressure={"foreign": [{"name": "ollama", "bytes": int(7.8 * 1024**3)}]},
    )
    visit.page.locator("#cosyd-strip", has_text="300 MB").wait_for()
    visit.page.locator("#cosyd-status", has_text="其他程序占用：ollama 占用 7.8 GB").wait_for()
    assert "RTX 3060" in visit.page.inner_text("#cosyd-status")
    assert "偏低" in visit.page.inner_text("#cosyd-status")
    visit.page.click("#cosyd-free")
    visit.page.locator("#cosyd-notice", has_text="已清理缓存").wait_for()
    visit.page.click("#cosyd-restart")
    visit.page.locator("#cosyd-notice", has_text="语音引擎正在重启").wait_for()
    assert {c["target"] for c in rig.web.told("restart")} == {"worker:builtin", "worker:numbers"}
    rig.send_state()
    visit.until('!document.querySelector("#cosyd-strip").innerText.includes("显存")')


def test_the_language_can_be_switched_and_is_kept(visitor: Visitor) -> None:
    visit = visitor.open("de-DE")
    assert visit.page.inner_text("#cosyd-generate") == "Generate"
    visit.page.click(".cosyd-lang")
    visit.page.locator("#cosyd-generate", has_text="生成").wait_for()
    visit.page.goto(visit.page.url.split("?")[0])
    visit.page.locator("#cosyd-generate", has_text="生成").wait_for()
    assert visit.page.get_attribute("html", "lang") == "zh-CN"


@pytest.mark.parametrize("locale", ["zh-CN", "en-US"])
def test_everything_fits_a_phone(visitor: Visitor, locale: str) -> None:
    visit = visitor.open(locale, 390, 844)
    tabs = visit.page.locator('[role="tablist"] [role="tab"]')
    assert tabs.count() == 5
    for n in range(5):
        box = tabs.nth(n).bounding_box()
        assert box is not None and box["y"] > 700 and box["height"] >= 44 and box["x"] + box["width"] <= 391
        tabs.nth(n).click()
        visit.until("document.documentElement.scrollWidth <= 390")
    tabs.nth(0).click()
    for field in ("#cosyd-text textarea", "#cosyd-voice input", "#cosyd-generate"):
        box = visit.page.locator(field).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_what_needs_the_model_is_greyed_with_one_sentence(visitor: Visitor, rig: Rig) -> None:
    visit = visitor.open()
    hint = visit.page.locator("#cosyd-hint code")  # the command that mends it
    hint.wait_for()
    assert visit.page.locator("#cosyd-modes button:disabled").count() == 4
    trouble = rig.http.get("/api/voices").json()["cloning"]
    assert not trouble["available"] and hint.inner_text() in trouble["message"]
    visit.tab("Voices")
    assert visit.page.locator("#cosyd-add-open").is_disabled()
    assert hint.inner_text() == visit.page.inner_text(".cosyd-needs code")


def test_every_field_has_a_name(visitor: Visitor) -> None:
    visit = visitor.open()
    for label in ("Text", "Voice", "Speed", "Random seed"):
        assert visit.page.get_by_label(label).count() >= 1, label
    visit.tab("Recordings")
    assert visit.page.get_by_label("Search your recordings").count() == 1


def test_the_page_goes_on_when_its_web_process_is_killed(visitor: Visitor, rig: Rig) -> None:
    visit = visitor.open()
    visit.choose_voice("Numbers")
    visit.write("Sentence 1. " * 10 + "[gate killed] 2. " + "Sentence 3. " * 5)
    visit.page.click("#cosyd-generate")
    visit.until(f"{PLAYER} && {PLAYER}.currentTime > 0.2")
    assert rig.web is not None
    rig.web.process.kill()
    rig.web.process.wait(10)
    (rig.paths.root / "killed").touch()
    rig.start_web()
    rig.send_state()
    visit.says("Done in", 40)
    assert visit.page.input_value("#cosyd-text textarea").startswith("Sentence 1.")
    visit.until(f"Number.isFinite({PLAYER}.duration) && {PLAYER}.duration > 5", 40)
    assert visit.elsewhere == []


def test_a_voice_added_since_the_start_is_there_on_page_load_and_one_removed_is_gone(
    visitor: Visitor, rig: Rig
) -> None:
    fields = {"name": "Anna 安娜", "consent": "own", "language": "en"}
    hum = np.sin(np.arange(4 * 24000, dtype=np.float32) / 20) / 4
    with closing(connect(rig.paths.database, "accept")) as conn:
        added = add_voice(conn, rig.paths, parse_new_voice(fields, time.time()), hum, 24000, time.time())
    visit = visitor.open()
    visit.page.click("#cosyd-voice input")
    option = visit.page.locator('[role="option"]', has_text="Anna 安娜")
    option.wait_for()
    option.click()
    assert "Anna" in visit.page.input_value("#cosyd-voice input")
    with closing(connect(rig.paths.database, "accept")) as conn:
        remove_voice(conn, rig.paths, added.id, time.time())
    later = visitor.open()
    later.page.click("#cosyd-voice input")
    later.page.locator('[role="option"]', has_text="Numbers").wait_for()
    assert later.page.locator('[role="option"]', has_text="Anna").count() == 0


def test_a_notice_moves_nothing_shows_commands_as_such_and_goes_with_its_tab(visitor: Visitor) -> None:
    visit = visitor.open(width=390, height=844)
    top = 'document.querySelector("#cosyd-generate").getBoundingClientRect().top + scrollY'
    visit.until('document.querySelector("#cosyd-strip .cosyd-pill") && window.cosyd.shelf.known')
    before = visit.page.evaluate(top)
    visit.page.click("#cosyd-generate")
    notice = visit.page.locator("#cosyd-notice", has_text="Write something first")
    notice.wait_for()
    box = notice.bounding_box()
    assert visit.page.evaluate(top) == before
    assert box is not None and box["y"] > 0 and box["y"] + box["height"] < 844 - 58  # seen, above the tabs
    visit.page.evaluate('window.cosyd.notice("Run `cosyd doctor` once.", "error")')
    assert visit.page.inner_text("#cosyd-notice code") == "cosyd doctor"
    visit.tab("Status")
    visit.page.locator("#cosyd-notice").wait_for(state="hidden")


def test_trouble_has_its_word_stands_first_and_leads_to_the_status(visitor: Visitor, rig: Rig) -> None:
    assert rig.web is not None
    visit = visitor.open()
    rig.send_state(
        vram={"free_bytes": 1 << 28, "total_bytes": 1 << 32, "level": "critical", "name": "GTX 1650"}
    )
    first = visit.page.locator("#cosyd-strip .cosyd-pill").first
    first.filter(has_text="very tight").wait_for()
    first.click()
    visit.page.locator("#cosyd-status", has_text="GTX 1650").wait_for()
    rig.send_state()


@pytest.mark.parametrize(
    ("locale", "tab", "short", "cure"),
    [
        ("en-US", "Status", "driver updated", "Restart the machine to finish the update."),
        ("zh-CN", "状态", "驱动已更新", "重启机器"),
    ],
)
def test_trouble_with_the_card_is_in_the_strip_and_its_cure_on_the_status(
    visitor: Visitor, rig: Rig, locale: str, tab: str, short: str, cure: str
) -> None:
    assert rig.web is not None
    visit = visitor.open(locale)
    rig.send_state(gpu_state="driver_mismatch")
    visit.page.locator("#cosyd-strip", has_text=short).wait_for()
    visit.tab(tab)
    visit.page.locator("#cosyd-status", has_text=cure).wait_for()
    rig.send_state(gpu_state="ok")
    visit.until(f'!document.querySelector("#cosyd-strip").innerText.includes("{short}")')


def test_a_cosyd_that_does_not_answer_is_said_and_not_shown_as_ready(visitor: Visitor) -> None:
    visit = visitor.open()
    visit.page.locator("#cosyd-strip", has_text="ready").wait_for()
    visit.page.route("**/api/state", lambda route: route.abort())
    visit.page.locator("#cosyd-strip", has_text="does not answer").wait_for()
    assert "ready" not in visit.page.inner_text("#cosyd-strip")
    visit.page.unroute("**/api/state")
    visit.page.locator("#cosyd-strip", has_text="ready").wait_for()


def test_a_recording_is_paused_by_its_button_and_only_one_sounds_at_a_time(
    visitor: Visitor, rig: Rig
) -> None:
    for n in (81, 82):
        made = rig.http.post("/api/jobs", json={"text": f"Toast {n}. " * 20, "voice": "numbers"}).json()["id"]
        wait_for(lambda job=made: rig.rows("SELECT 1 FROM generations WHERE id = ?", job), 20, "it")
    visit = visitor.open(width=390, height=844)
    visit.tab("Recordings")
    visit.page.fill("#cosyd-search", "Toast")
    visit.until('document.querySelectorAll("#cosyd-history .cosyd-item").length === 2')
    plays = visit.page.locator("#cosyd-history .cosyd-play")
    place = plays.nth(0).bounding_box()
    plays.nth(0).click()
    visit.until('document.querySelector("#cosyd-history audio")?.currentTime > 0')
    assert plays.nth(0).bounding_box() == place and plays.nth(0).get_attribute("title") == "Pause"
    plays.nth(1).click()
    visit.until(
        '[...document.querySelectorAll("#cosyd-history audio")].map((a) => a.paused).join() === "true,false"'
    )
    plays.nth(1).click()
    visit.until('[...document.querySelectorAll("#cosyd-history audio")].every((a) => a.paused)')
    for part in (".cosyd-play", ".cosyd-item-acts button", ".cosyd-downloads summary"):
        box = visit.page.locator(f"#cosyd-history {part}").first.bounding_box()
        assert box is not None and box["height"] >= 44, part
    visit.page.locator("#cosyd-history summary").first.click()
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#cosyd-history details[open]").count() == 0
