"""Voices on the page in a real browser: a microphone that plays a file, the tiny CosyVoice 3 checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS, Visit, Visitor
from tests.cosyvoice3.conftest import KIT, NO_TORCH
from tests.integration.rig import Rig
from tests.integration.service import wait_for

pytest.importorskip("torch", reason=NO_TORCH)
pytestmark = pytest.mark.browser

ELSEWHERE = "cosyd.local"
"""A name that leads here but is no secure context, as an address on the LAN."""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files to upload or to play into the microphone."""
    folder = tmp_path_factory.mktemp("clips")
    audio, rate = soundfile.read(KIT / "golden" / "prompt_24k.wav", dtype="float32")
    made = {
        "speech": np.tile(audio, 5)[: 8 * rate],
        "short": audio[: 2 * rate],
        "silent": np.zeros(4 * rate, np.float32),
    }
    for name, samples in made.items():
        soundfile.write(folder / f"{name}.wav", samples, rate, "PCM_16")
    return {name: folder / f"{name}.wav" for name in made}


@pytest.fixture(scope="module")
def browser(clips: dict[str, Path]) -> Iterator[Browser]:
    flags = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={clips['speech']}",
        f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
    ]
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags])
        yield made
        made.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    env = {"COSYD_MODEL_DIR": str(KIT / "model"), "OMP_NUM_THREADS": "1"}
    folder: Path = tmp_path_factory.mktemp("cloning")
    with Rig(folder, {"web.default_voice": "heart"}, engines=("builtin",), env=env) as made:
        made.engines = ("builtin", "cosyvoice3")
        made.start_worker("cosyvoice3").wait("ready", 180)
        made.send_state()
        yield made


def open_form(visit: Visit, tab: str = "Voices") -> None:
    visit.tab(tab)
    visit.page.click("#cosyd-add-open")
    visit.page.wait_for_selector(".cosyd-add")


def upload(visit: Visit, clip: Path) -> None:
    visit.page.locator('.cosyd-add .cosyd-clip-tabs [role="tab"]').nth(1).click()
    visit.page.set_input_files(".cosyd-add input[type=file]", str(clip))


def save(visit: Visit) -> None:
    visit.page.click(".cosyd-add button[type=submit]")


def verdict(visit: Visit, kind: str) -> str:
    """The words of a verdict, once it is there."""
    visit.page.locator(f'.cosyd-verdict[data-kind="{kind}"]').wait_for(timeout=120_000)
    return visit.page.inner_text(f'.cosyd-verdict[data-kind="{kind}"]')


def newest(rig: Rig, columns: str, table: str = "generations") -> dict[str, object]:
    order = "seq" if table == "generations" else "rowid"
    found: dict[str, object] = rig.rows(f"SELECT {columns} FROM {table} ORDER BY {order} DESC LIMIT 1")[0]
    return found


def add_voice(rig: Rig, clips: dict[str, Path], **fields: str) -> str:
    form = {"name": "Ben", "consent": "own"} | fields
    with clips["speech"].open("rb") as clip:
        made = rig.http.post("/api/voices", data=form, files={"audio": clip}, headers={"Origin": rig.url})
    return str(made.json()["id"])


def test_a_voice_is_recorded_learned_heard_and_used_in_a_dialect(visitor: Visitor, rig: Rig) -> None:
    visit = visitor.open()
    open_form(visit)
    sentence = visit.page.inner_text(".cosyd-clip-read")
    record = visit.page.locator(".cosyd-add .cosyd-clip-record")
    record.click()
    visit.until("Number(document.querySelector('.cosyd-clip-clock').textContent.match(/[0-9.]+/)?.[0]) > 3.5")
    visit.until("parseFloat(document.querySelector('.cosyd-clip-level i').style.width) > 2")
    record.click()
    visit.until("document.querySelector('.cosyd-clip audio').duration > 3")
    visit.page.fill("#cosyd-add-name", "Grandma")
    visit.page.check('.cosyd-consent input[value="agreed"]')
    visit.page.fill("#cosyd-add-person", "Anna Müller")
    save(visit)
    assert "Grandma" in verdict(visit, "ready")
    visit.until("document.querySelector('.cosyd-verdict audio').duration > 0.3")
    row = newest(rig, "id, name, source, transcript, language, seconds, consent", "voices")
    consent = json.loads(str(row["consent"]))
    assert (row["name"], row["source"], row["transcript"], row["language"]) == (
        "Grandma", "recording", sentence, "en",
    )  # fmt: skip
    assert float(str(row["seconds"])) > 2 and consent["person"] == "Anna Müller" and consent["at"]

    visit.page.click(".cosyd-verdict .cosyd-primary")
    visit.until("document.querySelector('#cosyd-voice input').value.startsWith('Grandma')")
    pressed = visit.page.locator('#cosyd-modes [aria-pressed="true"]')
    assert pressed.inner_text() == "Clone"
    visit.page.get_by_role("button", name="With a style").click()
    visit.write("Hello there.")
    visit.page.click("#cosyd-generate")
    visit.page.locator("#cosyd-notice", has_text="Choose a style").wait_for()
    visit.page.select_option("#cosyd-dialect", "sichuan")
    visit.page.select_option("#cosyd-style", "happy")
    visit.page.fill("#cosyd-words", "slowly")
    visit.page.click("#cosyd-generate")
    visit.says("Done in", 120)
    said = newest(rig, "voice, mode, instruct")
    assert said == {
        "voice": row["id"], "mode": "instruct", "instruct": "请用四川话表达。请非常开心地说一句话。 slowly。",
    }  # fmt: skip
    visit.page.get_by_role("button", name="Ready-made voice").click()
    visit.until("document.querySelector('#cosyd-voice input').value.startsWith('Heart')")
    visit.tab("Recordings")
    visit.page.locator("#cosyd-history .cosyd-item").first.get_by_text("Use again").click()
    visit.until("document.querySelector('#cosyd-words')?.value === 'slowly'")
    assert visit.page.input_value("#cosyd-dialect") == "sichuan" and pressed.inner_text() == "With a style"
    assert visit.elsewhere == [] and visit.trouble == []


def test_an_upload_without_words_says_what_that_means(
    visitor: Visitor, rig: Rig, clips: dict[str, Path]
) -> None:
    visit = visitor.open("zh-CN", 390, 844)
    open_form(visit, "音色")
    upload(visit, clips["short"])
    visit.page.locator(".cosyd-add .cosyd-note", has_text="跨语种复刻").wait_for()
    visit.page.fill("#cosyd-add-name", "外婆")
    visit.page.check('.cosyd-consent input[value="guardian"]')
    save(visit)
    assert "三到十秒" in verdict(visit, "fair")
    assert "外婆" in verdict(visit, "ready")
    row = newest(rig, "id, source, transcript, consent", "voices")
    assert (row["source"], row["transcript"]) == ("upload", None)
    assert json.loads(str(row["consent"]))["choice"] == "guardian"
    assert newest(rig, "mode") == {"mode": "cross_lingual"}
    visit.page.click(".cosyd-verdict .cosyd-primary")
    visit.page.locator('#cosyd-modes [aria-pressed="true"]', has_text="跨语种复刻").wait_for()
    assert visit.page.get_by_role("button", name="声音复刻", exact=True).is_disabled()
    assert "没有填写参考音频里说的话" in visit.page.inner_text("#cosyd-hint")
    assert visit.trouble == []


def test_what_is_missing_is_asked_for_and_a_bad_clip_is_explained(
    visitor: Visitor, rig: Rig, clips: dict[str, Path]
) -> None:
    visit = visitor.open()
    before = rig.rows("SELECT count(*) AS n FROM voices")
    open_form(visit)
    notice = visit.page.locator("#cosyd-notice")
    upload(visit, clips["silent"])
    for words, mend in (
        ("name", lambda: visit.page.fill("#cosyd-add-name", "Nobody")),
        ("whose voice", lambda: visit.page.check('.cosyd-consent input[value="agreed"]')),
        ("person who agreed", lambda: visit.page.fill("#cosyd-add-person", "Anna")),
    ):
        save(visit)
        notice.get_by_text(words).wait_for()
        mend()
    save(visit)
    assert "Nothing can be heard" in verdict(visit, "bad")
    assert rig.rows("SELECT count(*) AS n FROM voices") == before
    upload(visit, clips["speech"])  # the form is still filled in: another clip, and it goes
    save(visit)
    assert "Nobody" in verdict(visit, "ready")


def test_a_voice_is_renamed_and_deleted_only_when_confirmed(
    visitor: Visitor, rig: Rig, clips: dict[str, Path]
) -> None:
    voice = add_voice(rig, clips)
    visit = visitor.open()
    visit.tab("Voices")
    card = visit.page.locator(f'.cosyd-voice-own[data-id="{voice}"]')
    card.locator(".cosyd-play").click()
    visit.until(f"document.querySelector('[data-id=\"{voice}\"] audio')?.duration > 3")
    card.get_by_text("Edit").click()
    card.locator(".cosyd-edit-name").fill("Uncle Ben")
    card.locator(".cosyd-edit-tags").fill("family, family, calm")
    card.get_by_text("Save").click()
    card.locator("b", has_text="Uncle Ben").wait_for()
    assert card.inner_text().count("# family") == card.inner_text().count("# calm") == 1
    card.get_by_text("Delete", exact=True).click()
    card.get_by_text("Cancel").click()
    assert card.locator(".cosyd-sure").count() == 0
    card.get_by_text("Delete", exact=True).click()
    card.get_by_text("Delete for good").click()
    card.wait_for(state="detached")
    assert not (rig.paths.voices / voice).exists()
    assert voice not in {v["id"] for v in rig.http.get("/api/voices").json()["voices"]}


def test_a_recording_is_said_again_in_another_voice(
    visitor: Visitor, rig: Rig, clips: dict[str, Path]
) -> None:
    voice = add_voice(rig, clips, name="Convert me")
    visit = visitor.open()
    visit.choose_voice("Convert me")
    visit.page.get_by_role("button", name="Change a voice").click()
    assert not visit.page.is_visible("#cosyd-text")
    visit.page.click("#cosyd-generate")
    visit.page.locator("#cosyd-notice", has_text="Choose a recording").wait_for()
    visit.page.locator('#cosyd-manner [role="tab"]').nth(1).click()
    visit.page.set_input_files("#cosyd-manner input[type=file]", str(clips["speech"]))
    visit.page.click("#cosyd-generate")
    visit.says("Done in", 120)
    made = newest(rig, "voice, mode, text, audio_seconds, source")
    assert 7.5 < float(str(made.pop("audio_seconds"))) < 8.5
    assert made == {"voice": voice, "mode": "convert", "text": "Voice changed: speech.wav", "source": "page"}
    assert visit.trouble == []


def test_over_plain_http_the_page_says_why_it_cannot_record(visitor: Visitor, rig: Rig) -> None:
    visit = visitor.open()
    visit.page.goto(f"http://{ELSEWHERE}:{rig.port}/")
    visit.page.wait_for_selector("#cosyd-generate")
    open_form(visit)
    assert "https" in visit.page.inner_text(".cosyd-add .cosyd-clip-trouble")
    tabs = visit.page.locator('.cosyd-add .cosyd-clip-tabs [role="tab"]')
    assert tabs.nth(0).is_disabled() and tabs.nth(1).get_attribute("aria-selected") == "true"
    assert visit.page.is_visible(".cosyd-add .cosyd-clip-drop")


@pytest.mark.parametrize("locale", ["zh-CN", "en-US"])
def test_the_form_fits_a_phone(visitor: Visitor, locale: str) -> None:
    visit = visitor.open(locale, 390, 844)
    open_form(visit, "音色" if locale == "zh-CN" else "Voices")
    visit.page.check('.cosyd-consent input[value="agreed"]')
    for pane in (0, 1):
        visit.page.locator('.cosyd-add .cosyd-clip-tabs [role="tab"]').nth(pane).click()
        visit.until("document.documentElement.scrollWidth <= 390")
        for box in visit.page.locator(
            ".cosyd-add :is(button, input:not(.cosyd-file), textarea, select)"
        ).all():
            place = box.bounding_box()
            assert place is None or (place["x"] >= 0 and place["x"] + place["width"] <= 390)


def test_a_voice_added_elsewhere_can_be_chosen(visitor: Visitor, rig: Rig, clips: dict[str, Path]) -> None:
    voice = add_voice(rig, clips, name="From the API", transcript="The words of the clip.")
    visit = visitor.open()
    visit.choose_voice("From the API")
    visit.write("Good evening.")
    visit.page.click("#cosyd-generate")
    visit.says("Done in", 120)
    wait_for(lambda: newest(rig, "voice, mode") == {"voice": voice, "mode": "zero_shot"}, 10, "its row")
