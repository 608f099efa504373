"""A headless Chromium (Debian's) that notes every request, and a web with a worker behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.integration.rig import Rig

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=user-gesture-required",
]


@dataclass
class Visit:
    """One open page; `elsewhere` are requests to other hosts, `trouble` what its console complained about."""

    page: Page
    context: BrowserContext
    elsewhere: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        self.page.fill("#cosyd-text textarea", text)

    def choose_voice(self, label: str) -> None:
        self.page.click("#cosyd-voice input")
        self.page.click(f'[role="option"]:has-text("{label}")')

    def tab(self, label: str) -> None:
        self.page.click(f'[role="tablist"] [role="tab"]:has-text("{label}")')

    def says(self, words: str, timeout_s: float = 20) -> None:
        """Wait until the progress line has `words`."""
        self.page.locator("#cosyd-now .cosyd-say", has_text=words).wait_for(timeout=timeout_s * 1000)

    def until(self, script: str, timeout_s: float = 20) -> None:
        """Wait until a script gives something true."""
        self.page.wait_for_function(script, timeout=timeout_s * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


class Visitor:
    """Opens pages on one rig."""

    def __init__(self, browser: Browser, rig: Rig) -> None:
        self._browser, self._rig = browser, rig
        self.visits: list[Visit] = []

    def open(self, locale: str = "en-US", width: int = 1280, height: int = 900, path: str = "/") -> Visit:
        context = self._browser.new_context(locale=locale, viewport={"width": width, "height": height})
        page = context.new_page()
        page.set_default_timeout(20_000)
        visit = Visit(page, context)
        self.visits.append(visit)
        ours = (self._rig.url, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(ours) else visit.elsewhere.append(r.url))
        page.on("pageerror", lambda error: visit.trouble.append(str(error)))
        page.on("console", lambda m: visit.trouble.append(m.text) if m.type == "error" else None)
        page.goto(self._rig.url + path)
        page.wait_for_selector("#cosyd-generate")
        page.wait_for_selector("#cosyd-count span", state="attached")
        return visit


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("browser")
    with Rig(folder, {"web.default_voice": "heart"}, engines=("builtin", "numbers")) as made:
        yield made


@pytest.fixture
def visitor(browser: Browser, rig: Rig) -> Iterator[Visitor]:
    made = Visitor(browser, rig)
    yield made
    for visit in made.visits:
        visit.context.close()
