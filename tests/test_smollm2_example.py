"""The example with a real model trains."""

from __future__ import annotations

import pytest
from test_examples import EXAMPLES

from astraflow_testing.runs import User

pytestmark = [pytest.mark.backend, pytest.mark.slow]


@pytest.mark.turns(
    "examples/smollm2.toml",
    "contrib/pypi_models/src/**/*.py",
    "contrib/reasoning_gym/src/**/*.py",
    "plugins/engines/torch/src/**/*.py",
    "plugins/trainers/torch/src/**/*.py",
)
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("heavy_imports")
def test_smollm2_trains_for_a_few_steps(user: User) -> None:
    del user.environment["XDG_CACHE_HOME"]  # the converted model is kept between runs
    overrides = [
        "run.steps=2", "policies.solver.batch_sequences=8", "run.group_size=4",
        "raas.max_concurrent_episodes=8", "eval.sets.held_out.size=4", "sampling.max_tokens=8",
        "policies.solver.data=[]",
    ]  # fmt: skip
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / "smollm2.toml", *arguments, deadline_s=880)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 2 and ended.summary["versions"] == 2
    assert ended.summary["tokens_trained"] > 0
