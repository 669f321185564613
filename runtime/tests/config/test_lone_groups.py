"""Groups of one trajectory and algorithms that compare rewards within a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.load import LoadedConfig
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.lone_groups import lone_group_notes, lone_group_problems

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


def load(site: Any, file: Path, *overrides: str) -> LoadedConfig:
    return load_config(file, overrides, site.catalog())


def is_content(loaded: LoadedConfig) -> bool:
    """Whether there is neither a problem nor a note."""
    return lone_group_problems(loaded) == lone_group_notes(loaded) == []


@pytest.mark.parametrize(
    ("compares", "workflow"),
    [("sequences", "toy_turn"), ("trajectories", "toy_turn"), ("trajectories", "talk")],
)
@pytest.mark.usefixtures("talk")
def test_an_algorithm_that_would_learn_nothing_is_refused(
    site: Any, run_file: Path, compares: str, workflow: str
) -> None:
    overrides = (COMPARES + compares, f"workflow.use={workflow}")
    lone = load(site, run_file, ONE, *overrides)
    remedy = "; set run.group_size to 2 or more, or use an algorithm that does not need groups (toy_loss)"
    assert (lone_group_problems(lone), lone_group_notes(lone)) == ([SAID + remedy], [])
    assert is_content(load(site, run_file, "run.group_size=2", *overrides))


def test_an_algorithm_that_compares_nothing_can_do_with_one(site: Any, run_file: Path) -> None:
    assert is_content(load(site, run_file, ONE, "workflow.use=toy_turn"))


@pytest.mark.parametrize("workflow", ["talk", "toy_parts:Part"])
@pytest.mark.usefixtures("talk")
def test_a_workflow_that_may_give_several_sequences_is_reported(
    site: Any, run_file: Path, workflow: str
) -> None:
    lone = load(site, run_file, ONE, COMPARES + "sequences", f"workflow.use={workflow}")
    more = ", unless the workflow returns several sequences of the policy per trajectory"
    assert (lone_group_problems(lone), lone_group_notes(lone)) == ([], [SAID + more])
