"""One rank of the parity tests: GRPO steps on given batches; rank 0 leaves what it found in a folder."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # for megatron_cases

from megatron_cases import STEPS, Course, make_batch

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.types import Ranks

RESUMED_AT = 3


def main(folder: Path) -> None:
    """Everything that one launch is to show, for each model in ``folder``."""
    given = json.loads((folder / "given.json").read_text())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ranks = Ranks(rank, size, int(os.environ["LOCAL_RANK"]), deadline_s=given["deadline_s"])
    for kind in given["models"]:  # after the first they part, and meet again
        found = follow(folder / kind, given["keys"], ranks)
        if rank == 0:
            np.savez(folder / kind / "found.npz", **found)


def follow(folder: Path, keys: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Five steps, the last two twice: with and without a checkpoint between."""
    behaviour = np.load(folder / "behaviour.npz")
    batches = [replace(make_batch(n), logprobs=behaviour[str(n)]) for n in range(STEPS)]
    model, state = folder / "model", folder / "checkpoint"
    course = Course("megatron", keys, model, folder, ranks)
    logprobs, norms, losses = [], [], []
    for number, batch in enumerate(batches):
        if number == RESUMED_AT:
            if ranks.rank == 0:
                state.mkdir()
            course.trainer.logprobs(batch, "current")  # every rank is past the folder's making
            course.trainer.save(state)
        logprobs.append(course.trainer.logprobs(batch, "current"))
        metrics = course.step(batch, number)
        norms.append(metrics["grad_norm"])
        losses.append(metrics["loss"])
    after = course.weights()
    if ranks.rank == 0:
        (folder / "left").mkdir()
    course.trainer.save_model(folder / "left")
    final = course.trainer.logprobs(batches[0], "current")

    resumed = Course("megatron", keys, model, folder, ranks)
    resumed.trainer.load(state)
    again = [resumed.step(batches[n], n)["grad_norm"] for n in range(RESUMED_AT, STEPS)]
    twice = resumed.weights()
    assert again == norms[RESUMED_AT:], f"rank {ranks.rank}: {again} after a resume, {norms}"

    poisoned = resumed.prepared(batches[0])
    assert poisoned.advantages is not None
    poisoned.advantages[np.flatnonzero(poisoned.loss_mask)[5]] = math.nan
    refused = 0
    try:
        resumed.trainer.step(poisoned, resumed.algorithm, 9)
    except NonFiniteLoss:
        refused = 1
    assert refused, f"rank {ranks.rank} stepped on a loss that is not finite"
    unchanged = resumed.weights()

    facts = json.loads((state / "trainer.json").read_text())
    facts["layout"] = "7 tensor × 1 data × 1 pipeline parallel"
    resumed.trainer.logprobs(batches[0], "current")  # every rank has read
    if ranks.rank == 0:
        (state / "trainer.json").write_text(json.dumps(facts))
    resumed.trainer.logprobs(batches[0], "current")  # rank 0 has written
    try:
        resumed.trainer.load(state)
    except UserError as error:
        assert "7 tensor" in str(error), error
    else:
        raise AssertionError("a checkpoint of another layout was loaded")
    for left in (course, resumed):
        left.trainer.close()
    return {
        "norms": norms,
        "losses": losses,
        "final": final,
        **{f"logprobs/{number}": value for number, value in enumerate(logprobs)},
        **{f"after/{name}": value for name, value in after.items()},
        **{f"twice/{name}": value for name, value in twice.items()},
        **{f"unchanged/{name}": value for name, value in unchanged.items()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
