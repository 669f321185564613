"""What a loss returns is checked before it is summed."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from astraflow_core.errors import RunFailed
from astraflow_core.types import Loss
from astraflow_torch_training.gradient import checked_loss


class Algorithm:
    def __init__(self, given: object) -> None:
        self.given = given

    def loss(self, inputs: object) -> object:
        return self.given


SCALAR = torch.zeros(())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (torch.zeros(()), "returned a Tensor; expected an astraflow_core.types.Loss"),
        (None, "returned a NoneType"),
        (
            Loss({"policy": (1.0, torch.zeros(5))}),
            r"term 'policy' as shape \(5,\); expected a scalar",
        ),
        (Loss({"policy": (1.0, cast(Any, 0.5))}), r"term 'policy' as 0\.5"),
        (
            Loss({"policy": (1.0, SCALAR)}, {"clip": torch.zeros(1)}),
            r"metric 'clip' as shape \(1,\)",
        ),
    ],
)
def test_a_wrong_loss_is_named(given: object, problem: str) -> None:
    with pytest.raises(RunFailed, match=problem) as caught:
        checked_loss(cast(Any, Algorithm(given)), cast(Any, None))
    assert "loss() of " in str(caught.value) and ":Algorithm " in str(caught.value)


def test_a_right_loss_passes() -> None:
    loss = Loss({"policy": (1.0, SCALAR)}, {"clip": SCALAR})
    assert checked_loss(cast(Any, Algorithm(loss)), cast(Any, None)) is loss
