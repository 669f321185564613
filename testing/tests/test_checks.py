"""A suite cannot be emptied in silence."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from astraflow_testing.conformance.trainer import TrainerConformance, installed

class TestIt(TrainerConformance):
    calls_loss = False

    @pytest.fixture
    def component(self):
        return installed("trainer", "astraflow_testing.table:TableTrainer")

"""
REPLACED = "    def test_the_step_after_loading_is_the_same(self): pass"
REMOVED = "    test_export_is_what_the_trainer_computes_with = None"
NO_REFERENCE = """
    @pytest.fixture
    def reference(self): pytest.skip("no backend")
"""
NO_TRAINER = """
    @pytest.fixture
    def rig(self, component):
        class Rig:
            def build(self): pytest.skip("later")
        return Rig()
"""


def examined(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    """The outcome of a class of that body."""
    pytester.makepyfile(HEAD + body)
    chosen = "whole or replaced or after_loading or reference_stays"
    return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-k", chosen)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (REPLACED, "*replaces *test_the_step_after_loading_is_the_same*expected_failures*"),
        (REMOVED, "*replaces *test_export_is_what*expected_failures*"),
        (NO_REFERENCE, "*the fixture reference skips (no backend)*"),
        (NO_TRAINER, "*declares checkpoint, but its test was skipped (later)*"),
    ],
)
def test_what_takes_tests_away_fails(pytester: pytest.Pytester, body: str, words: str) -> None:
    result = examined(pytester, body)
    assert result.ret == 1
    result.stdout.fnmatch_lines([words])


def test_only_what_is_not_claimed_is_skipped(pytester: pytest.Pytester) -> None:
    examined(pytester, "").assert_outcomes(passed=3, skipped=1)
