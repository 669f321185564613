"""A frozen engine that serves older versions of a policy."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.config.loading import load_config


def with_past(run_file: Path, **keys: Any) -> list[str]:
    model = tomllib.loads(run_file.read_text())["policies"]["solver"]["model"]
    table = {"model": model, "use": "toy_engine", "follows": "solver", **keys}
    return [f"engines.past.{key}={value}" for key, value in table.items()]


def test_a_follower_is_a_frozen_engine_with_a_distance(site: Any, run_file: Path) -> None:
    config = load_config(run_file, with_past(run_file, behind=4), site.catalog()).config
    past = config.engines["past"]
    assert (past.follows, past.behind, config.served["past"].frozen) == ("solver", 4, True)


@pytest.mark.parametrize(
    ("keys", "override", "expected"),
    [
        (
            {"follows": "verifier"},
            "run.seed=1",
            "engines.past.follows: 'verifier' is not a policy of this run; its policies are solver",
        ),
        (
            {"model": "another"},
            "run.seed=1",
            "engines.past.model: must be the model of policies.solver, because it serves the versions of that policy",
        ),
        (
            {},
            "raas.pause=abort",
            "raas.pause: 'abort' needs engine capability pause.abort; 'toy_engine' of engines.past offers keep, wait",
        ),
        (
            {},
            "policies.solver.transport.use=toy_ring",
            "engines.past: transport 'toy_ring' needs engine capability weights.collective; 'toy_engine' lacks it",
        ),
    ],
)
def test_a_follower_that_cannot_follow_is_refused(
    site: Any, run_file: Path, keys: dict[str, str], override: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(run_file, [*with_past(run_file, **keys), override], site.catalog())
    assert expected in caught.value.problems


def test_keys_of_training_are_no_keys_of_a_frozen_engine(site: Any, run_file: Path) -> None:
    with pytest.raises(
        ConfigError, match="batch_sequences, trainer: a frozen engine is not trained"
    ):
        load_config(
            run_file,
            [
                *with_past(run_file),
                "engines.past.trainer={ use = 'toy_trainer' }",
                "engines.past.batch_sequences=4",
            ],
            site.catalog(),
        )
