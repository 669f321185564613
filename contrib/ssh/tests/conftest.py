"""Fixtures: two hosts on loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_sshd import LocalSshd, local_sshd


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSshd]:
    """A server that is reached as host ``one`` and as host ``two``."""
    base = tmp_path_factory.getbasetemp().parent
    with local_sshd(tmp_path_factory.mktemp("sshd"), base, ("one", "two")) as server:
        yield server
