"""Fifty kills of web, worker and supervisor under load lose no job. Here and not with the integration tests
since each takes some seconds; those have twelve, and 1,000 with --long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_chaos import kill_at_random

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]
KILLS = 50


def test_fifty_kills_of_web_worker_and_supervisor_lose_no_job(tmp_path: Path) -> None:
    kill_at_random(tmp_path, KILLS, seed=50)
