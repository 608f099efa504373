"""What runs where: `--long`, `--system`, and skips said aloud (failures in CI, unless asked for).

- `slow` tests (full counts, soaks) run with `--long`. A test that always runs, only with fewer rounds, takes
  the `rounds` fixture: `rounds(50, 500)`.
- `root` tests (namespaces, mounts, debootstrap) run as root with `--system`.
- `alone` tests measure time: no other test runs beside them (pytest-xdist: `./install.sh test`).
- `browser` tests need Debian's chromium, `gpu` tests an NVIDIA card.
Every other skip is a decision of the test itself. With `SKIPS_ARE_FAILURES=1` such a skip is a failure: CI
installs all that the tests need, so a skip there means that something was silently not tested.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NOT_ASKED = "not asked for: "
"""Starts the reason of every skip that is an option's business, not a missing part's. Allowed in CI."""

NO_CARD = "no NVIDIA card"

FULL_COUNT_S = 4 * 3600
"""What a test with full counts may take, where it does not say so itself."""


# The tests' checkpoint of CosyVoice is tiny: with more threads, here and in workers, they only wait for each
# other (75 s instead of 2 for a test on a busy machine). Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts background jobs with SIGINT ignored, and programs inherit it: tests of Ctrl+C would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options that ask for more than a laptop wants to run."""
    group = parser.getgroup("cosyd")
    group.addoption("--long", action="store_true", help="full counts and soaks (hours)")
    group.addoption(
        "--system", action="store_true", help="tests that need root: debootstrap roots, namespaces"
    )


def in_ci() -> bool:
    """True where everything that the tests need was installed, so that nothing may be skipped unasked."""
    return os.environ.get("SKIPS_ARE_FAILURES") == "1"


def has_card() -> bool:
    """Is there an NVIDIA device node (a driver without one speaks to no card)?"""
    return Path("/dev/nvidia0").exists()


def skip_reason(
    markers: set[str], *, long: bool, system: bool, root: bool, chromium: bool, card: bool
) -> str:
    """Why a test with these markers does not run here; "" when it does."""
    if "slow" in markers and not long:
        return NOT_ASKED + "full counts (pytest --long)"
    if "root" in markers and not system:
        return NOT_ASKED + "system tests (as root: pytest --system tests/system)"
    if "root" in markers and not root:
        return "needs root"
    if "browser" in markers and not chromium:
        return "needs Debian's chromium: apt-get install chromium fonts-noto-cjk"
    if "gpu" in markers and not card:
        return NO_CARD
    return ""


def allowed_in_ci(reason: str) -> bool:
    """May a test be skipped for this reason where everything is installed?"""
    return NOT_ASKED in reason or NO_CARD in reason


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the reason on every test that does not run here, so that `-ra` prints it."""
    chromium = shutil.which("chromium") is not None
    for item in items:
        reason = skip_reason(
            {mark.name for mark in item.iter_markers()},
            long=config.getoption("--long"),
            system=config.getoption("--system"),
            root=os.geteuid() == 0,
            chromium=chromium,
            card=has_card(),
        )
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        counts = item.get_closest_marker("slow") or "rounds" in getattr(item, "fixturenames", ())
        if config.getoption("--long") and counts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FULL_COUNT_S))


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip that nobody asked for into a failure, in CI only."""
    if not in_ci() or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not allowed_in_ci(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped where it should have run: {reason}"


# Outermost, so that pytest-timeout does not count the time spent waiting for a turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Where several processes share the tests, each test takes its turn: see tests/turns.py."""
    if not hasattr(item.config, "workerinput") or item.config.cache is None:
        return (yield)  # type: ignore[return-value]
    from tests.turns import turn  # here: test_conftest runs this file alone in a folder

    with turn(item.config.cache.mkdir("turns"), alone=item.get_closest_marker("alone") is not None):
        return (yield)  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Looks at each test's report."""
    report = yield
    _refuse_skip(report)
    return report  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a whole module that skips itself at import (`importorskip`)."""
    report = yield
    _refuse_skip(report)
    return report  # type: ignore[return-value]


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """True in a run with full counts."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def rounds(long: bool) -> Callable[[int, int], int]:
    """`rounds(50, 500)`: 50 in an ordinary run, 500 with --long."""

    def choose(ordinary: int, full: int) -> int:
        return full if long else ordinary

    return choose
