"""Fixtures: somebody who runs commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import User

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody in a folder of their own; what they started is ended."""
    somebody = User(tmp_path)
    yield somebody
    somebody.close()
