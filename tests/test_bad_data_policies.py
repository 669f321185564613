"""What is wrong about a data policy is said early and clearly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import ConfigError
from astraflow_testing.conformance.subject import context
from astraflow_testing.runs import TABLE_RUN, User

REQUIRED: dict[str, dict[str, Any]] = {
    "mixing": {"weights": {"a": 1}},
    "reward_filter": {"low": 0.1},
    "length_filter": {"high": 9},
}
CATALOG = Catalog.discover()
STATEFUL = sorted(
    listed.component.name
    for listed in CATALOG.components("data_policy")
    if "stateful" in listed.component.capabilities
)


@pytest.mark.parametrize(
    ("use", "keys", "match"),
    [
        ("replay", {"ratio": 1.0}, "ratio"),
        ("replay", {"ratio": -0.1}, "ratio"),
        ("replay", {"ratio": float("nan")}, "ratio"),
        ("replay", {"exponent": float("inf")}, "exponent"),
        ("greso", {"floor_hard": 1.2}, "floor_hard"),
        ("greso", {"lowest": 0.9, "highest": 0.1}, "lowest"),
        ("greso", {"p_easy": 0.001}, "p_easy"),
        ("greso_repository", {"floor": 0.0}, "floor"),
        ("solved_filter", {"revisit": 1.01}, "revisit"),
        ("curriculum", {"explore": -1}, "explore"),
        ("curriculum", {"low": 2, "high": 1}, "nothing would be admitted"),
        ("mixing", {"weights": {"a": -1}}, "must not be negative"),
        ("mixing", {"weights": {"a": 0, "b": [[0, 0], [5, 1]]}}, "must be positive"),
        ("staleness_decay", {"decay": 0}, "decay"),
        ("staleness_decay", {"decay": 1.5}, "decay"),
        ("staleness_throttle", {"cut": 1.0}, "cut"),
        ("overlong_filter", {"most": 1.0}, "most"),
        ("mixed_streams", {"source": "a", "ratio": 1.1}, "ratio"),
        ("reward_filter", {}, "without a bound nothing is filtered"),
        ("reward_filter", {"low": float("nan")}, "low"),
        ("length_filter", {"low": 9, "high": 3}, "low must not exceed high"),
        ("dynamic_sampling", {"tolerance": 1.0}, "tolerance"),
        ("ordering", {"by": "age"}, "edf"),
        ("replay", {"ration": 0.5}, "ratio"),
    ],
)
def test_a_key_that_cannot_be_is_named(use: str, keys: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        CATALOG.validate_options("data_policy", use, keys, f"policies.solver.data.0.{use}")
    assert "policies.solver.data.0" in str(caught.value)


@pytest.mark.parametrize("use", STATEFUL)
def test_a_state_of_another_version_is_refused(use: str, tmp_path: Path) -> None:
    selected, config = CATALOG.validate_options("data_policy", use, REQUIRED.get(use, {}), use)
    policy = selected.build(config, context("dataflow", tmp_path))
    state = policy.state_dict()
    policy.load_state_dict(state)
    for key in state:
        with pytest.raises(ValueError, match="another version of this policy"):
            policy.load_state_dict({k: v for k, v in state.items() if k != key})
    with pytest.raises(ValueError, match="another version of this policy"):
        policy.load_state_dict({**state, "added": 1})


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{ use = "replai" }', "replay"),
        pytest.param(
            '{ use = "replay", max_staleness = 3 }',
            "max_staleness = 3 is looser than the run's, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            '{ use = "replay" }, { use = "replay", name = "other" }',
            "'replay' and 'other'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            '{ use = "greso", policy = "critic" }', "this run has solver", marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_does_not_begin_with_it(user: User, data: str, says: str) -> None:
    config = TABLE_RUN.replace("[policies.solver]\n", f"[policies.solver]\ndata = [{data}]\n")
    ended = user.run_table(config=config)
    assert ended.exit_code == 2, ended.text
    assert says in ended.text
    assert user.left_running() == []
