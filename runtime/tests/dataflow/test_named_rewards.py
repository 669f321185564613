"""Rewards by name: a batch that needs them has each with the statistics of the whole group, or the run fails and names
the missing one."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import Refused
from astraflow_core.types import Batch
from astraflow_runtime.dataflow.progress import RunState
from astraflow_wire.batches import NoBatch, decode_batch
from astraflow_wire.messages import NextBatch

CORRECT, FORM = (1.0, 0.0, 0.0, 1.0), (0.1, 0.7, 0.3, 0.3)


@pytest.fixture
def bench_of(bench: Any, config: Any) -> Callable[..., Any]:
    """A dataflow with groups of one size and batches of another."""

    def built(group: int, batch: int, *policies: str) -> Any:
        run = {"steps": 10, "max_staleness": 1, "group_size": group, "lease_s": 30.0}
        changes = {f"run__{key}": value for key, value in run.items()}
        return bench(
            config(policies or ("solver",), policy__batch_sequences=batch, **changes)
        ).begin()

    return built


def asked(bench: Any, *names: str, policy: str = "solver") -> Batch | NoBatch:
    message = NextBatch(policy=policy, version=0, wait_s=0, named_rewards=list(names))
    body = bench.flow.training.next_batch(message)
    assert body is not None
    return decode_batch(b"".join(body))


def test_statistics_are_those_of_whole_groups_also_where_a_batch_splits_them(
    bench_of: Callable[..., Any],
) -> None:
    bench = bench_of(4, 6)
    for task in bench.lease()[0]:
        values = zip(CORRECT, FORM, strict=True)
        bench.push(task, metrics=[{"form": form, "correct": right} for right, form in values])
    batch = asked(bench, "correct", "form")
    assert isinstance(batch, Batch) and batch.named_rewards is not None
    named = batch.named_rewards
    assert named.names == ("correct", "form") and named.earned.shape == (2, 6)
    np.testing.assert_array_equal(named.earned[0], np.float32((CORRECT * 2)[:6]))
    for number, values in enumerate((CORRECT, FORM)):
        np.testing.assert_allclose(named.mean[number], np.mean(values), rtol=1e-6)
        np.testing.assert_allclose(named.std[number], np.std(values, ddof=1), rtol=1e-6)
    part = batch.take(np.array([5, 1])).named_rewards
    assert part is not None
    np.testing.assert_array_equal(part.earned[1], np.float32([FORM[1], FORM[1]]))


def test_each_policy_gets_only_the_named_rewards_that_it_requested(
    bench_of: Callable[..., Any],
) -> None:
    bench = bench_of(2, 2, "solver", "verifier")
    task = bench.lease()[0][0]
    bench.push(task, metrics=[{"form/verifier": 0.5, "form": 1.0}, {"form/verifier": 1.0, "form": 0.0}])  # fmt: skip
    for policy, earned in (("solver", [1.0, 0.0]), ("verifier", [0.5, 1.0])):
        batch = asked(bench, "form", policy=policy)
        assert isinstance(batch, Batch) and batch.named_rewards is not None
        assert batch.named_rewards.earned.tolist() == [earned]
        plain = asked(bench, policy=policy)
        assert isinstance(plain, Batch) and plain.named_rewards is None


def test_an_episode_without_one_is_refused_to_the_trainer_by_its_name(
    bench_of: Callable[..., Any],
) -> None:
    bench = bench_of(2, 2)
    task = bench.lease()[0][0]
    bench.push(task, metrics=[{"correct": 1.0, "form": 0.5}, {"correct": 1.0}])
    with pytest.raises(Refused) as refused:
        asked(bench, "correct", "form")
    assert refused.value.status == HTTPStatus.UNPROCESSABLE_ENTITY
    for part in ("policy 'solver'", "'form'", repr(task.prompt_id), '[reward] use = "rubric"'):
        assert part in str(refused.value)
    assert bench.state.progress.state is RunState.RUNNING
    assert isinstance(asked(bench, "correct"), Batch)
