"""Fixtures that several system tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.swap_helper import MIB, Helper, small_disk


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    """On 400 MiB of ext4."""
    tmp_path.chmod(0o755)
    with small_disk(tmp_path, "ext4", 400 * MIB) as mount:
        made = Helper(tmp_path, mount)
        try:
            yield made
        finally:
            made.close()
