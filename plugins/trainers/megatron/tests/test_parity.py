"""``megatron`` at several ranks against ``torch`` at one: weights, norms and log-probs, step for step.

Two ranks that share each matrix are in the conformance suite, as its test of several ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from megatron_cases import NO_CUDA
from megatron_launch import LAYOUTS, same_steps_as_one

pytestmark = [pytest.mark.backend, pytest.mark.slow, NO_CUDA]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "tensor"])
def test_ranks_make_the_same_steps_as_one(layout: str, torch_alone: Path, tmp_path: Path) -> None:
    same_steps_as_one(layout, torch_alone, tmp_path / "ranks")
