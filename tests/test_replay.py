"""`astraflow replay` and `astraflow lineage` on runs that really happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

NOTING = '''
"""A trainer that notes what it is given, and is killed once where it is told to be."""
import hashlib
import os
import signal
from pathlib import Path

import numpy as np

from astraflow_testing.table import TableTrainer, TableTrainerConfig

COLUMNS = ("tokens", "loss_mask", "logprobs", "versions", "rewards", "lengths", "group", "trajectory")


class Noting(TableTrainer):
    Config = TableTrainerConfig
    capabilities = TableTrainer.capabilities

    def __init__(self, config, context):
        super().__init__(config, context)
        self.file = context.run.directory / "given.txt"

    def step(self, batch, algorithm, step):
        dead = Path("dead")
        if step == 5 and Path("kill").exists() and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        digest = hashlib.sha256(repr((batch.id, batch.version)).encode())
        for name in COLUMNS:
            digest.update(np.ascontiguousarray(getattr(batch, name)).tobytes())
        with self.file.open("a") as file:
            file.write(f"{batch.id} {digest.hexdigest()}\\n")
        return super().step(batch, algorithm, step)
'''
RUN = TABLE_RUN.replace("astraflow_testing.table:TableTrainer", "noting:Noting")


def given(directory: Path) -> dict[str, str]:
    """Batch → digest of the data that its trainer got last."""
    lines = (directory / "given.txt").read_text().splitlines()
    return dict(line.split() for line in lines)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, someone: Callable[[Path], User]) -> User:
    """A run whose trainer was killed in the middle, and went on from its checkpoint."""
    user = someone(tmp_path_factory.mktemp("replay"))
    user.write("noting.py", NOTING)
    user.write("kill", "")
    ended = user.run_table("checkpoint.every=2", "journal.record_mb=100", config=RUN)
    assert ended.exit_code == 0, ended.text
    assert (user.directory / "dead").exists()
    return user


def replayed(user: User, *options: str) -> tuple[Path, dict[str, Any], EndedCommand]:
    """The directory of a replay, its replay.json, and what the command said."""
    (run,) = (user.directory / "runs").iterdir()
    before = set(run.glob("replays/*"))
    ended = user.astraflow("replay", run, *options)
    assert ended.exit_code == 0, ended.text
    (directory,) = set(run.glob("replays/*")) - before
    return directory, json.loads((directory / "replay.json").read_text()), ended


def test_the_same_batches_and_weights(recorded: User) -> None:
    (run,) = (recorded.directory / "runs").iterdir()
    before = sorted(file for file in run.rglob("*") if "replays" not in file.parts)
    directory, told, ended = replayed(recorded)
    assert given(directory) == given(run)
    solver = told["policies"]["solver"]
    assert solver["updates"] == solver["compared_updates"] == 8
    assert solver["compared_versions"] == 9
    assert solver["first_difference"] is solver["weights_differ_from"] is None
    name = Path("models", "solver", "model.safetensors")
    assert (directory / name).read_bytes() == (run / name).read_bytes()
    assert "bit for bit" in ended.out
    assert sorted(file for file in run.rglob("*") if "replays" not in file.parts) == before
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
    assert [step["step"] for step in steps if "step" in step][-1] == 8


def test_another_loss_and_fewer_updates(recorded: User) -> None:
    _, told, ended = replayed(recorded, "--until", "3", "--trainer", "lr=50")
    solver = told["policies"]["solver"]
    assert solver["updates"] == 3
    assert solver["weights_differ_from"] == 1
    assert "the weights differ from update 1 on" in ended.out


def test_other_data_policies(recorded: User) -> None:
    (run,) = (recorded.directory / "runs").iterdir()
    directory, told, _ = replayed(recorded, "--data", "ordering")
    batches = given(directory)
    # Judged anew by data policies that decide as those of the run did, they are the same.
    assert batches.items() <= given(run).items()
    assert told["policies"]["solver"]["updates"] == len(batches) > 3
    directory, told, _ = replayed(recorded, "--data", "[{ use = 'ordering', by = 'surprise' }]")
    assert given(directory) != given(run)


def test_lineage_there_and_back(recorded: User) -> None:
    (run,) = (recorded.directory / "runs").iterdir()

    def lineage(*words: str) -> dict[str, Any]:
        ended = recorded.astraflow("lineage", run, *words, "--json")
        assert ended.exit_code == 0, ended.text
        return dict(json.loads(ended.out))

    step = lineage("step", "3")
    rows = [row for group in step["groups"] for row in group["rows"]]
    assert len(rows) == 32
    assert step["plugins"]["policies.solver.transport"].startswith("http (astraflow-plugin-http")
    for row in rows:
        assert sum(count for _, count in row["versions"]) == row["trained_tokens"]
        assert min(version for version, _ in row["versions"]) == row["min_version"]
        assert row["staleness"] == step["updates_version"] - row["min_version"] <= 2
    one = rows[7]["row"]
    (use,) = lineage("row", one)["trained_in"]
    assert (use["step"], use["rows"]) == (3, [one])
    prompt = lineage("prompt", step["groups"][0]["prompt"])
    used = [use for use in prompt["trained_in"] if use["step"] == 3]
    assert {row["row"] for row in step["groups"][0]["rows"]} <= set(used[0]["rows"])
    version = lineage("version", str(step["published_version"]))
    assert [made["batch"] for made in version["made_by"]] == [step["batch"]]
    told = recorded.astraflow("lineage", run, "row", "solver:999999")
    assert told.exit_code == 2 and "has no row" in told.err
