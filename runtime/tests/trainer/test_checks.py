from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import NonFiniteLoss, RunFailed
from astraflow_core.types import Batch
from astraflow_runtime.trainer.updates.checks import check_batch, check_given
from astraflow_runtime.trainer.updates.update import effective_sizes


def make_batch() -> Batch:
    mask = np.array([0, 1, 1, 0, 1, 0, 0, 1], bool)
    return Batch(
        id="solver-000003", policy="solver", version=1, lengths=np.array([3, 2, 3], np.int32),
        tokens=np.zeros(8, np.int32), loss_mask=mask, logprobs=np.where(mask, -1, 0).astype(np.float32),
        versions=np.zeros(8, np.int32), rewards=np.array([0, 1, 2], np.float32),
        group=np.array([5, 6, 5]), trajectory=np.arange(3), group_size=np.array([2, 1, 2], np.int32),
        group_mean=np.ones(3, np.float32), group_std=np.array([1, 0, 1], np.float32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"rewards": [0, np.nan, 2]}, NonFiniteLoss, r"rewards of 1 of 3 rows .* row 1 \(nan, group 6"),
        ({"group_std": [np.inf, 0, 1]}, NonFiniteLoss, "group_std of 1 of 3 rows"),
        ({"rewards": [0, 1]}, RunFailed, r"rewards has shape \(2,\), expected \(3,\): 3 rows of 8"),
        ({"logprobs": np.zeros((2, 4))}, RunFailed, r"logprobs has shape \(2, 4\), expected \(8,\)"),
        ({"tokens": np.zeros(7)}, RunFailed, r"lengths add up to 8, tokens has shape \(7,\)"),
        ({"logprobs": np.full(8, np.nan)}, NonFiniteLoss, "logprobs are not finite at 4 of 4 trained"),
        ({"turn_rewards": np.full(8, np.inf)}, NonFiniteLoss, "turn_rewards are not finite at 4 of 4"),
        ({"turn_rewards": [1, 2]}, RunFailed, r"turn_rewards has shape \(2,\), expected \(8,\)"),
        ({"group_mean": [1, 1, 3]}, RunFailed, "'solver': rows 0 and 2 of group 5 .* group_mean .* span two"),
    ],
)  # fmt: skip
def test_a_bad_batch_is_refused_with_names_and_shapes(
    changed: dict[str, Any], error: type[Exception], told: str
) -> None:
    check_batch(make_batch())
    columns = {name: np.asarray(values, np.float32) for name, values in changed.items()}
    with pytest.raises(error, match=told) as raised:
        check_batch(replace(make_batch(), **columns))
    assert "'solver-000003'" in str(raised.value)


def test_what_masked_tokens_hold_does_not_matter() -> None:
    batch = make_batch()
    check_batch(replace(batch, logprobs=np.where(batch.loss_mask, -1, np.nan).astype(np.float32)))


def test_arrays_of_a_trainer_are_one_finite_number_per_token() -> None:
    batch = make_batch()
    fine = np.where(batch.loss_mask, 0.5, np.inf).astype(np.float32)
    check_given(batch, "the trainer", {"values": fine})
    with pytest.raises(
        RunFailed, match=r"the trainer gave values of shape \(3,\) .* expected \(8,\)"
    ):
        check_given(batch, "the trainer", {"values": fine[:3]})
    with pytest.raises(NonFiniteLoss, match=r"values of the trainer .* 1 of 4 .* in row 1 \(inf\)"):
        check_given(batch, "the trainer", {"values": np.where(np.arange(8) == 4, np.inf, 0)})


def test_effective_sample_sizes_are_made_of_two_means() -> None:
    weights = np.array([1.0, 3.0])
    given = {"w_mean": weights.mean(), "w_square_mean": (weights**2).mean(), "loss": 1.0}
    assert effective_sizes(given) == {"w_mean": 2.0, "w_ess": pytest.approx(0.8), "loss": 1.0}
    assert effective_sizes({"w_mean": 0.0, "w_square_mean": 0.0})["w_ess"] == 0
    assert effective_sizes({"lone_square_mean": 2.0}) == {"lone_square_mean": 2.0}
