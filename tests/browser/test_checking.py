"""A clip is looked at in the form before it becomes a voice, in a real browser; that needs no model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.browser.conftest import Visit, Visitor
from tests.integration.rig import Rig
from tests.integration.service import wait_for
from tests.unit.clipkit import RATE, speechlike, stand_in_model, write

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("checking")
    with Rig(folder, {"web.default_voice": "heart"}, engines=(), env=stand_in_model(folder)) as made:
        yield made


def looked(visit: Visit, tab: str, file: Path, kind: str) -> str:
    """Open the form, choose a file; what is said of it."""
    visit.tab(tab)
    visit.page.click("#cosyd-add-open")
    visit.page.locator('.cosyd-add .cosyd-clip-tabs [role="tab"]').nth(1).click()
    visit.page.set_input_files(".cosyd-add input[type=file]", str(file))
    visit.page.locator(f'.cosyd-looked[data-kind="{kind}"]').wait_for(timeout=120_000)
    return visit.page.inner_text(".cosyd-looked")


def test_another_part_of_a_long_recording_is_chosen_and_becomes_the_voice(
    visitor: Visitor, rig: Rig, tmp_path: Path
) -> None:
    pause = np.zeros(RATE, np.float32)
    long = write(tmp_path / "long.wav", np.concatenate([speechlike(9), pause, speechlike(5, seed=3), pause]))
    visit = visitor.open()
    said = looked(visit, "Voices", long, "fair")
    assert "Part 1" in said and "Part 2" in said and "deleted after a day" in said
    first = visit.page.input_value(".cosyd-parts input >> nth=0")
    visit.page.get_by_role("button", name="Part 2").click()
    start, end = (float(visit.page.input_value(f".cosyd-parts input >> nth={i}")) for i in (0, 1))
    assert start > float(first) + 5 and 4 < end - start < 6
    visit.page.get_by_role("button", name="Listen to this part").click()
    visit.until(f"document.querySelector('.cosyd-parts audio').currentTime > {start}", 60)
    visit.page.fill("#cosyd-add-name", "Part two")
    visit.page.check('.cosyd-consent input[value="own"]')
    visit.page.click(".cosyd-add button[type=submit]")
    found = wait_for(lambda: rig.rows("SELECT name, seconds FROM voices"), 120, "the voice")
    assert found[0]["name"] == "Part two" and abs(found[0]["seconds"] - (end - start)) < 0.4
    assert visit.elsewhere == []


def test_what_is_wrong_with_a_clip_is_said_before_anything_is_filled_in(
    visitor: Visitor, rig: Rig, tmp_path: Path
) -> None:
    visit = visitor.open("zh-CN", 390, 844)
    assert "听不到声音" in looked(visit, "音色", write(tmp_path / "a.wav", np.zeros(3 * RATE)), "bad")
    visit.page.set_input_files(".cosyd-add input[type=file]", str(write(tmp_path / "b.wav", speechlike(6))))
    visit.page.locator('.cosyd-looked[data-kind="good"]').wait_for(timeout=120_000)
    visit.until("document.documentElement.scrollWidth <= 390")
    assert visit.trouble == []
