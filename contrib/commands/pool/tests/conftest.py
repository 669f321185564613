"""Fixtures: a user who runs commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import User

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user with a folder of their own; processes that they started are stopped at the end."""
    somebody = User(tmp_path)
    yield somebody
    somebody.close()
