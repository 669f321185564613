"""A run with each transport: weights reach the engine, and nothing is left when it has ended."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_core.testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHOICES = {
    "shm": '{ use = "shm", directory = "STORE" }',
    "disk": '{ use = "disk", url = "STORE" }',
    "delta": '{ use = "delta", kernel = "numpy" }',
    "zmq": '{ use = "zmq", credit = 2 }',
    "auto": '{ use = "auto" }',
}


@pytest.fixture
def store() -> Iterator[Path]:
    """A folder for versions, with a short path: the doorbell of shared memory is a socket in it."""
    with tempfile.TemporaryDirectory(prefix="w-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_ends_with_every_version_served(user: User, store: Path, name: str) -> None:
    table = CHOICES[name].replace("STORE", str(store))
    ended = user.run_table("run.steps=6", config=TABLE_RUN.replace('{ use = "http" }', table))
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == ended.summary["versions"] == 6
    assert ended.summary["lost"] == 0
    resolved = (ended.run_directory / "config.toml").read_text()
    if name == "auto":
        chosen = re.search(r"'auto' chose '(\w+)', because", ended.text)
        assert chosen is not None and f"# policies.solver.transport: {chosen[0]}" in resolved
        assert f'use = "{chosen[1]}"' in resolved
    assert not [path for path in store.rglob("*") if path.is_file()]
