"""What is known of a suite belongs to its source, and a run of pytest says which suites ran on what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow_core.errors import UserError
from astraflow_testing import suite_verdicts
from astraflow_testing.suite_verdicts import recorded, source_digest, verdict_on

pytest_plugins = ["pytester"]

TESTS = """
import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject


class Oldest:
    def __init__(self, context):
        pass

    def key(self, row):
        return float(row.arrival)


class TestOldest(DataPolicyConformance):
    expected_failures = {}

    @pytest.fixture
    def component(self):
        return Subject({"oldest": Oldest}, frozenset({"key"}))

    def test_own(self):
        assert 1 == 2, "because"
"""


def test_every_suite_has_a_record_of_mutants_that_it_caught() -> None:
    assert len(recorded()) == 13
    for suite in recorded():
        verdict = verdict_on(suite)
        assert verdict.caught == verdict.mutants >= 4, verdict
        assert len(verdict.source) == 64


def test_a_record_is_of_one_source_of_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"reward": {"suite": source_digest("reward"), "mutants": []}}
    monkeypatch.setattr(suite_verdicts, "recorded", lambda: record)
    assert verdict_on("reward").recorded
    assert not verdict_on("workflow").recorded
    (helper,) = {
        m
        for m in suite_verdicts._reached("astraflow_testing.conformance.reward")
        if m.endswith("_checks")
    }
    real, changed = suite_verdicts._file, tmp_path / "changed.py"
    changed.write_text("")
    monkeypatch.setattr(suite_verdicts, "_file", lambda m: changed if m == helper else real(m))
    assert not verdict_on("reward").recorded


def test_an_unknown_suite_is_named() -> None:
    with pytest.raises(UserError, match="no conformance suite 'rewrd'"):
        verdict_on("rewrd")


def test_pytest_writes_down_which_suites_ran(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    options = ("-p", "no:cacheprovider", "-p", "astraflow_testing.suites_used")
    pytester.runpytest_inprocess(*options, "--suites-report", "report.json")
    report = json.loads((pytester.path / "report.json").read_text())
    (own,) = [test for test in report["tests"] if not test["suite"]]
    assert own["id"].endswith("TestOldest::test_own")
    assert (own["outcome"], own["why"]) == ("failed", "AssertionError: because")
    ran = [test for test in report["tests"] if test["suite"]]
    assert {test["suite"] for test in ran} == {"data_policy"} == report["suites"].keys()
    assert {test["outcome"] for test in ran} <= {"passed", "skipped"}
    assert report["suites"]["data_policy"]["caught"] > 4
