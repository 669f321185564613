"""What an algorithm says of groups of one is what it does with them."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astraflow_core.catalog import Catalog
from astraflow_testing.stamping import stamped

C = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_cases.py"))))
NAMES = sorted(entry.component.name for entry in Catalog.discover().components("algorithm"))
LONGEST: dict[str, dict[str, Any]] = {
    "dr_grpo": {"max_tokens": 12},
    "gdpo": {"rewards": {"correct": 1.0, "form": 0.5}},
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, LONGEST.get(name, {})) for name in NAMES),
    ("grpo", {"singleton_advantage": "reward"}),
    ("grpo", {"group_unit": "trajectory"}),
    ("grpo", {"group_unit": "token"}),
    ("rloo", {"singleton_advantage": "zero"}),
    ("reinforce_pp", {"baseline": "group"}),
    ("gigpo", {}),
    ("turn_grpo", {}),
    ("turn_grpo", {"estimator": "cumulative"}),
    ("reinforce", {}),
    ("reinforce", {"baseline": "turn"}),
]


def lone(several: bool) -> Any:
    """A batch in which each row is a group of one; with ``several`` two of them are one trajectory of
    one group."""
    batch = C.make(5, 0.05).batch
    count = len(batch)
    tokens = np.bincount(batch.row_of_token, weights=batch.loss_mask, minlength=count)
    group = np.arange(count)
    rewards = np.linspace(0.25, 1.0, count).astype(np.float32)
    if several:
        pair = np.flatnonzero(tokens)[:2]
        group[pair] = pair[0]
    return stamped(replace(batch, rewards=rewards, group=group, trajectory=group.copy()))


@pytest.mark.parametrize(("name", "keys"), CASES, ids=lambda value: str(value))
def test_what_is_declared_of_groups_of_one_holds(name: str, keys: dict[str, Any]) -> None:
    _, config = Catalog.discover().validate_options("algorithm", name, keys, "test")
    compares = getattr(config, "compares", "")

    def learns(several: bool) -> bool:
        algorithm = C.build(name, keys)
        return bool(np.any(C.completed(algorithm, lone(several)).advantages != 0))

    assert learns(several=False) is (compares == "")
    assert learns(several=True) is (compares != "trajectories")
