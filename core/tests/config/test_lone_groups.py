"""Groups of one trajectory and algorithms that compare rewards within a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.load import load_config
from astraflow_core.errors import ConfigError

ONE = "run.group_size=1"
COMPARES = "policies.solver.algorithm.compares="
SAID = (
    "policies.solver.algorithm: 'toy_loss' with these keys compares the rewards of a group, and with "
    "run.group_size = 1 every advantage is 0"
)


TALK = """
@hookimpl
def astraflow_workflows():
    return [Component("talk", "toy_parts:Part", "workflow", None, frozenset({"multi_turn"}))]
"""


@pytest.fixture
def talk(site: Any, manifest: str) -> str:
    """A workflow of several turns, installed."""
    site.add("talk", manifest + TALK)
    return "workflow.use=talk"


def load(site: Any, file: Path, *overrides: str) -> tuple[str, ...]:
    """The notes of a run that loads."""
    return load_config(file, overrides, site.catalog()).notes


@pytest.mark.parametrize(
    ("compares", "workflow"),
    [("sequences", "toy_turn"), ("trajectories", "toy_turn"), ("trajectories", "talk")],
)
@pytest.mark.usefixtures("talk")
def test_an_algorithm_that_would_learn_nothing_is_refused(
    site: Any, run_file: Path, compares: str, workflow: str
) -> None:
    overrides = (COMPARES + compares, f"workflow.use={workflow}")
    with pytest.raises(ConfigError) as caught:
        load(site, run_file, ONE, *overrides)
    remedy = "; set run.group_size to 2 or more, or name an algorithm that does without (toy_loss)"
    assert caught.value.problems == [SAID + remedy]
    assert load(site, run_file, "run.group_size=2", *overrides) == ()


def test_an_algorithm_that_compares_nothing_can_do_with_one(site: Any, run_file: Path) -> None:
    assert load(site, run_file, ONE, "workflow.use=toy_turn") == ()


@pytest.mark.parametrize("workflow", ["talk", "toy_parts:Part"])
@pytest.mark.usefixtures("talk")
def test_a_workflow_that_may_give_several_sequences_is_told_of(
    site: Any, run_file: Path, workflow: str
) -> None:
    (note,) = load(site, run_file, ONE, COMPARES + "sequences", f"workflow.use={workflow}")
    more = ", unless the workflow gives several sequences of the policy in one trajectory"
    assert note == SAID + more
