"""The button that writes down what is said in a clip: there with a Whisper model, its words to correct."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from pipeline.jobs import SAMPLE_RATE
from tests.browser.conftest import Visitor
from tests.integration.rig import Rig
from tests.speech import spoken_by_the_built_in_voice, whisper_folder, word_error_rate
from tests.unit.clipkit import stand_in_model

pytestmark = pytest.mark.browser
TEXT = "The old house at the edge of the village had been empty for many years."


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("writing")
    settings = {"web.default_voice": "heart", "asr.model": str(whisper_folder())}
    with Rig(folder, settings, engines=(), env=stand_in_model(folder)) as made:
        yield made


def test_a_chosen_clip_is_written_down_for_correction(visitor: Visitor, tmp_path: Path) -> None:
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, spoken_by_the_built_in_voice(TEXT), SAMPLE_RATE)
    visit = visitor.open(width=390, height=844)
    visit.tab("Voices")
    visit.page.click("#cosyd-add-open")
    visit.page.locator('.cosyd-add .cosyd-clip-tabs [role="tab"]').nth(1).click()
    button = visit.page.locator(".cosyd-hear")
    assert not button.is_visible(), "there is nothing to write down yet"
    visit.page.set_input_files(".cosyd-add input[type=file]", str(clip))
    button.wait_for(timeout=60_000)
    assert button.inner_text() == "Write it down for me"
    button.click()
    visit.until("document.querySelector('.cosyd-add textarea').value !== ''", 120)
    written = visit.page.input_value(".cosyd-add textarea")
    assert word_error_rate(TEXT, written) <= 0.15
    visit.until("!document.querySelector('.cosyd-hear').disabled")
    visit.until("document.documentElement.scrollWidth <= 390")
    assert visit.elsewhere == [] and visit.trouble == []
