"""The rules about skips are code, so they are tested: pytest runs in a folder of its own, in CI and not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import allowed_in_ci, skip_reason

CONFTEST = Path(__file__).parents[1] / "conftest.py"
EVERYTHING = {"long": True, "system": True, "root": True, "chromium": True, "card": True}


@pytest.mark.parametrize(
    ("markers", "lacking", "allowed"),
    [
        ({"slow"}, "long", True),
        ({"root"}, "system", True),
        ({"root"}, "root", False),
        ({"browser"}, "chromium", False),
        ({"gpu"}, "card", True),
    ],
)
def test_each_marker_skips_when_its_need_is_lacking(markers: set[str], lacking: str, allowed: bool) -> None:
    assert skip_reason(markers, **EVERYTHING) == ""
    reason = skip_reason(markers, **{**EVERYTHING, lacking: False})
    assert reason
    assert allowed_in_ci(reason) is allowed


def run_pytest(folder: Path, body: str, ci: bool) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: x\n  gpu: x\n", encoding="utf-8")
    (folder / "test_it.py").write_text(body, encoding="utf-8")
    environment = {**os.environ, "SKIPS_ARE_FAILURES": "1" if ci else "", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


ASKED = "import pytest\n@pytest.mark.slow\ndef test_a(): pass\ndef test_b(): pass\n"
AT_RUN_TIME = "import pytest\ndef test_a(): pytest.skip('no ffmpeg')\ndef test_b(): pass\n"
AT_IMPORT = "import pytest\npytest.importorskip('no_such_module_at_all')\ndef test_a(): pass\n"


@pytest.mark.parametrize("body", [AT_RUN_TIME, AT_IMPORT])
def test_a_skip_that_nobody_asked_for_fails_in_ci_and_only_there(tmp_path: Path, body: str) -> None:
    assert run_pytest(tmp_path, body, ci=False).returncode in (0, 5)
    result = run_pytest(tmp_path, body, ci=True)
    assert result.returncode in (1, 2)
    assert "skipped where it should have run" in result.stdout


def test_full_counts_that_were_not_asked_for_may_be_skipped_in_ci(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, ASKED, ci=True)
    assert result.returncode == 0, result.stdout
    assert "1 passed, 1 skipped" in result.stdout
