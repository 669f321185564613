"""A mutant that one test has caught is skipped by the others: a single verdict is enough."""

from __future__ import annotations

from collections.abc import Generator

import pytest

HEALTHY = "TestHealthy"
JUDGEMENTS = (AssertionError, pytest.fail.Exception)

caught = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[caught] = set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _mutant(item) in item.config.stash[caught]:
        pytest.skip("another test has caught it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mutant, raised = _mutant(item), call.excinfo
    if mutant and raised and report.failed and call.when == "call":
        timed_out = str(raised.value).startswith("Timeout")  # no judgement
        if raised.errisinstance(JUDGEMENTS) and not timed_out:
            item.config.stash[caught].add(mutant)
    return report


def _mutant(item: pytest.Item) -> str:
    """The class of a mutant; empty for whatever else there is."""
    cls = getattr(item, "cls", None)
    healthy = cls is None or cls.__name__.startswith(HEALTHY)
    return "" if healthy else f"{item.path}::{cls.__name__}"
