from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody in a folder of their own; what they started is ended."""
    somebody = User(tmp_path)
    yield somebody
    somebody.close()
