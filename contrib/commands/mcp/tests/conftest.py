from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user with a folder of their own; processes that they started are stopped at the end."""
    somebody = User(tmp_path)
    yield somebody
    somebody.close()
