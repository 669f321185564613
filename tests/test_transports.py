"""A run with each transport: weights reach the engine, and nothing is left when it has ended."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.toml"
CHOICES = {
    "shm": '{ use = "shm", directory = "STORE" }',
    "disk": '{ use = "disk", url = "STORE" }',
    "delta": '{ use = "delta", kernel = "numpy" }',
    "zmq": '{ use = "zmq", credit = 2 }',
    "auto": '{ use = "auto" }',
}


@pytest.fixture
def store() -> Iterator[Path]:
    """A folder for versions, with a short path, since notifications of shared memory use a socket in it."""
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


@pytest.mark.usefixtures("heavy_imports")
def test_a_trainer_broadcasts_to_the_engine_of_a_run(user: User) -> None:
    """An engine that starts later than the trainer gets its first version by ``http``."""
    sets = (
        *("run.steps=4", "raas.replicas=1", "eval.sets.held_out.size=8"),
        *("policies.solver.batch_sequences=32", 'policies.solver.transport.use="collective"'),
    )
    ended = user.astraflow(
        "run", QUICKSTART, *(part for value in sets for part in ("--set", value)), deadline_s=150
    )
    assert ended.exit_code == 0, ended.text
    assert ended.summary["versions"] == 4
    log = (ended.run_directory / "logs" / "trainer-solver.log").read_text()
    sent = dict(re.findall(r"broadcast version (\d) to (\d) places", log))
    assert sent["3"] == sent["4"] == "1", log
