"""Fixtures: a user who runs commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import User

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def user(tmp_path: Path, someone: Callable[[Path], Any]) -> Iterator[User]:
    """A user with a folder of their own; processes that they started are stopped at the end."""
    somebody = someone(tmp_path)
    yield somebody
    somebody.close()
