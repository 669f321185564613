"""Episodes as they are shown to users: metrics of the workflow, and turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from played import fixed, once, rolled_out

from astraflow_core.types import RewardReport, Sequence, Trajectory
from astraflow_runtime.raas.episodes.episodes import TaskFailed

pytestmark = pytest.mark.timeout(20)


def test_odd_metrics_are_dropped_and_reported_once_and_the_rest_passes(handle, caplog):
    count = iter(range(4))

    async def measured(engines, prompt):
        number = next(count)
        metrics = {"turns": np.float32(number), "odd": np.nan, "x" * 200: 1.0, "a\ud800": 1.0}
        metrics |= {f"{number}-{n}": 1.0 for n in range(70)} if number else {"first": True}
        return replace(await once(engines, prompt), metrics=metrics)

    group = rolled_out(handle, measured, fixed)
    assert group.header.metrics["turns"] == [0.0, 1.0, 2.0, 3.0]
    assert group.header.metrics["first"] == [1.0, None, None, None]
    assert len(group.header.metrics) == 64 and "odd" not in group.header.metrics
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(told) == 3
    assert told[0].startswith(
        "workflow 'my_workflow': metric 'odd' = nan of an episode on prompt 'p0' is dropped: a value is finite and"
    )


@pytest.mark.parametrize("metrics", [[("a", 1.0)], {3: 1.0}, {"a": "high"}, None])
def test_metrics_that_are_no_numbers_by_name_are_the_workflows_mistake(handle, metrics):
    async def wrong(engines, prompt):
        return replace(await once(engines, prompt), metrics=metrics)

    with pytest.raises(TaskFailed, match=r"workflow 'my_workflow' on prompt 'p0' returned metric"):
        rolled_out(handle, wrong, fixed)


def test_metrics_of_a_reward_stand_beside_those_of_the_workflow(handle, caplog):
    async def measured(engines, prompt):
        return replace(await once(engines, prompt), metrics={"turns": 1.0, "both": 2.0})

    async def reported(view):
        return RewardReport(0.5, {"form": np.float32(0.25), "both": 3.0, "odd": np.inf})

    group = rolled_out(handle, measured, reported)
    assert group.header.metrics == {"turns": [1.0] * 4, "both": [2.0] * 4, "form": [0.25] * 4}
    assert "reward 'my_reward': metric 'odd' = inf of an episode" in caplog.text


def test_metrics_of_a_reward_that_are_no_numbers_fail_the_episode_by_its_name(handle):
    async def reported(view):
        return RewardReport(0.5, {"form": "good"})

    with pytest.raises(
        TaskFailed, match=r"reward 'my_reward' on prompt 'p0' returned metric 'form'"
    ):
        rolled_out(handle, once, reported)


def turned(handle, *sequences):
    async def several(engines, prompt):
        return Trajectory(sequences, (), {"solver": 1.0})

    return [(t.role, t.text) for t in rolled_out(handle, several, group_size=1).header.turns]


def sequence_of(handle, *parts):
    """``(text, sampled)`` one after the other."""
    tokens = [handle.tokenizer.encode(text) for text, _ in parts]
    mask = np.concatenate([np.full(len(t), s) for t, (_, s) in zip(tokens, parts, strict=True)])
    return Sequence(
        "solver", np.concatenate(tokens), mask, np.where(mask, -0.5, 0).astype(np.float32),
        np.where(mask, 0, -1).astype(np.int32),
    )  # fmt: skip


def test_all_turns_of_an_episode_are_shown_with_their_roles(handle):
    parts = [("12+3=", False), ("15", True), ("99", False), ("7", True)]
    said = ["prompt", "assistant", "environment", "assistant"]
    whole = list(zip(said, [text for text, _ in parts], strict=True))
    assert turned(handle, sequence_of(handle, *parts)) == whole
    # One sequence for each turn: the second begins with the first.
    assert turned(handle, sequence_of(handle, *parts[:2]), sequence_of(handle, *parts)) == whole
    other = sequence_of(handle, ("4", False), ("5", True))
    assert turned(handle, other, other) == [("prompt", "4"), ("assistant", "5")]


def test_many_and_long_turns_are_cut_in_the_middle(handle):
    long = "1" * 3000 + "2" * 3000
    (_, (role, text)) = turned(handle, sequence_of(handle, ("3", False), (long, True)))
    assert role == "assistant" and len(text) <= 1000
    assert text.startswith("111") and text.endswith("222") and "1…2" in text
    parts = [(str(n % 10), bool(n % 2)) for n in range(100)]
    turns = turned(handle, sequence_of(handle, *parts))
    assert len(turns) == 64
    assert turns[32] == ("omitted", "37 turns omitted")
    assert [text for _, text in turns[33:]] == [str(n % 10) for n in range(69, 100)]
