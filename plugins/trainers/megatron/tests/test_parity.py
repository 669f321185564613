"""``megatron`` at several ranks against ``torch`` at one: weights, norms and log-probs, step for step.

Two ranks are in the conformance suite, as its test of several ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from megatron_cases import NO_CUDA
from megatron_launch import MEGATRON, same_steps_as_one

pytestmark = [pytest.mark.backend, pytest.mark.slow, NO_CUDA]


@MEGATRON
@pytest.mark.timeout(600)
def test_four_ranks_make_the_steps_of_one(torch_alone: Path, tmp_path: Path) -> None:
    same_steps_as_one(4, torch_alone, tmp_path / "ranks")
