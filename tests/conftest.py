from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import Refusals

from astraflow_core.testing.runs import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user in an empty folder; whatever their commands left running is ended."""
    someone = User(tmp_path)
    yield someone
    someone.close()


@pytest.fixture
def refusals() -> Iterator[Refusals]:
    """Where refusals were raised during the test."""
    noted = Refusals()
    noted.begin()
    yield noted
    noted.end()
