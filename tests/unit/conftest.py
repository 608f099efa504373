"""Fixtures of the tests that need a store of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.paths import StatePaths
from tests.unit.storekit import new_state, opened


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    """A state folder with an empty database of the newest version."""
    return new_state(tmp_path / "state")


@pytest.fixture
def conn(paths: StatePaths) -> Iterator[sqlite3.Connection]:
    """A connection of a worker's kind to the database in `paths`."""
    with closing(opened(paths)) as connection:
        yield connection
