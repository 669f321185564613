"""Drafts from a store that has nothing are refused before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.raas.stored_drafts import draft_bytes

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.toml"
KEY = "policies.solver.engine.stored_drafts_kb"
FROZEN = ["engines.judge.use=torch", "engines.judge.model=quickstart/model"]


def test_a_policy_gets_as_many_bytes_as_its_key_says() -> None:
    assert draft_bytes(load_config(QUICKSTART, [f"{KEY}=64"]).config) == {"solver": 64_000}
    assert draft_bytes(load_config(QUICKSTART).config) == {}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"{KEY}=64", "rollouts.groups_per_step=0"], f"{KEY}: drafts come from the rollout store"),
        (
            [f"{KEY}=64", "policies.solver.engine.speculation=none"],
            'stored_drafts_kb needs speculation = "history"',
        ),
        ([f"{KEY}=64", "policies.solver.engine.use=hf"], "stored_drafts_kb: unknown key"),
        ([f"{KEY}=5000"], "stored_drafts_kb"),
        (
            [*FROZEN, "engines.judge.stored_drafts_kb=64"],
            "engines.judge.stored_drafts_kb: the rollout store has what policies sample",
        ),
    ],
)
def test_a_combination_without_drafts_is_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, overrides)
    assert expected in "\n".join(caught.value.problems)
