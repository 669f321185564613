"""The store of whole runs: it holds what was trained on, also if the dataflow is killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from astraflow_runtime.rollouts.reader import RolloutReader
from astraflow_testing.runs import TABLE_RUN, User, live_commands

pytestmark = [pytest.mark.timeout(150), pytest.mark.slow]

SAVING_TRAINER = """
from pathlib import Path

import numpy as np

from astraflow_testing.table import TableTrainer


class SavingTrainer(TableTrainer):
    "Leaves each batch that it is trained on."

    def step(self, batch, algorithm, step):
        columns = ("lengths", "tokens", "loss_mask", "logprobs", "versions", "rewards", "group", "trajectory", "advantages")
        arrays = {name: getattr(batch, name) for name in columns}
        np.savez(Path(f"batch-{step}-{batch.id}.npz"), **arrays)
        return super().step(batch, algorithm, step)


def build(config, context):
    return SavingTrainer(config, context)


def redact(record):
    record["prompt_data"] = {"answer": record["prompt_data"].get("answer")}
    return record
"""


@pytest.fixture
def user(tmp_path: Path, someone: Callable[[Path], User]) -> Iterator[User]:
    somebody = someone(tmp_path)
    somebody.write("saving.py", SAVING_TRAINER)
    yield somebody
    somebody.close()


def dataflow_of(user: User) -> int:
    (pid,) = (pid for pid, line in live_commands(user.marker).items() if "dataflow" in line)
    return pid


def test_a_store_has_what_was_trained_on_after_the_dataflow_was_killed(user: User) -> None:
    config = TABLE_RUN.replace("astraflow_testing.table:TableTrainer", "saving:SavingTrainer")
    config = config.replace("batch_sequences = 32", "batch_sequences = 28")  # cuts groups in two
    process = user.start(
        *user.table_arguments(
            "run.steps=40",
            "rollouts.groups_per_step=2",
            "rollouts.redact=saving:redact",
            "policies.solver.trainer.step_s=0.05",
            "checkpoint.every=4",
            config=config,
        )
    )
    for steps in (8, 20):
        user.wait_for_steps(steps)
        os.kill(dataflow_of(user), signal.SIGKILL)
    ended = user.end(process, 100)
    assert ended.exit_code == 0, ended.text
    directory = ended.run_directory
    rollouts = RolloutReader(directory)
    assert rollouts.dropped == 0

    # Two of each three groups, also of those that came in when a dataflow was killed.
    numbers = [int(name.partition("-")[2]) for name in rollouts.group_names]
    status = json.loads((directory / "status.json").read_text())
    pushed = status["tasks"]["accepted"] + status["tasks"]["rejected"]
    blocks = Counter(number // 3 for number in numbers)
    assert max(blocks.values()) == 2
    assert abs(len(numbers) - pushed * 2 / 3) <= 4  # tasks that were running at the end had numbers

    # What the trainer has seen, by itself.
    trained: dict[int, int] = {}
    for file in (directory.parent.parent).rglob("batch-*.npz"):
        batch = np.load(file)
        ends = np.cumsum(batch["lengths"])
        step = int(file.stem.split("-")[1]) + 1
        for row, number in enumerate(batch["group"].tolist()):
            if number not in numbers:
                continue
            span = slice(ends[row] - batch["lengths"][row], ends[row])
            group = rollouts.group(number)
            first = group.record.first_trajectory
            found = group.trajectories[int(batch["trajectory"][row]) - first]
            (stored,), (uses,) = found.stored.sequences, found.trained
            (use,) = uses
            assert use.step == step
            assert stored.reward == pytest.approx(batch["rewards"][row])
            for column in ("tokens", "loss_mask", "logprobs", "versions"):
                np.testing.assert_array_equal(getattr(stored, column), batch[column][span])
            np.testing.assert_array_equal(use.row.advantages, batch["advantages"][span])
            trained[number] = trained.get(number, 0) + 1
            assert found.stored.turns is not None
            assert found.stored.turns[0].text == f"x{group.record.prompt_id.partition(':')[2]}="
    stored_uses = sum(len(e.updates) for e in rollouts.entries())
    assert stored_uses == sum(trained.values()) > 100

    assert all(rollouts.group(n).record.prompt_data.keys() == {"answer"} for n in numbers)
    # Scored anew with the reward of the run: the same.
    same = user.astraflow(
        "rewards", "recompute", directory, "--reward", '{use = "exact", partial = "positions"}'
    )
    assert same.exit_code == 0, same.text
    assert "equal in 100%, correlation 1.000" in same.out
    strict = user.astraflow(
        "rewards", "recompute", directory, "--reward", "exact", "--output", "strict.json"
    )
    assert strict.exit_code == 0, strict.text
    document = json.loads((user.directory / "strict.json").read_text())
    for each in document["rollouts"]:
        loaded = rollouts.group(each["group"]).trajectories[each["index"]]
        assert each["old"] == loaded.stored.rewards
        text = loaded.stored.completions[-1].text  # type: ignore[index]
        answer = rollouts.group(each["group"]).record.prompt_data["answer"]
        assert each["new"]["solver"] == float(text == answer)
