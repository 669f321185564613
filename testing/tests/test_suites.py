"""Inheritance of suites: what they require, and the changes that they report."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.algorithm import AlgorithmConformance
from astraflow_testing.conformance.subject import Subject, installed

pytest_plugins = ["pytester"]

ORDER = """
import pytest

from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject


class Newest:
    def __init__(self, context):
        pass

    def key(self, row):
        return KEY


class TestNewest(DataPolicyConformance):
    BODY

    @pytest.fixture
    def component(self):
        return Subject({"newest": Newest}, frozenset({"key"}))
"""
INTEGER, FLOAT = "-row.arrival", "float(-row.arrival)"
TEST = "test_key_gives_finite_numbers"


class TestTableAlgorithm(AlgorithmConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("algorithm", "astraflow_testing.table:TableAlgorithm")


def run(pytester: pytest.Pytester, key: str, body: str) -> pytest.RunResult:
    pytester.makepyfile(ORDER.replace("KEY", key).replace("BODY", body))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rA")


def test_the_required_fixture_says_what_to_return(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from astraflow_testing.conformance.data_policy import DataPolicyConformance\n"
        "class TestMine(DataPolicyConformance):\n    pass\n"
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*define the fixture `component`: return installed(*"])
    assert result.parseoutcomes()["errors"] > 10


def test_a_failure_names_the_deed_the_demand_and_the_protocol(pytester: pytest.Pytester) -> None:
    result = run(pytester, INTEGER, "pass")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["*newest: key returned -1", "*protocols/data_policy.py requires:*"]
    )


def test_a_failure_may_be_expected_for_a_reason(pytester: pytest.Pytester) -> None:
    body = f"expected_failures = {{{TEST!r}: 'keys are integers here'}}"
    outcomes = run(pytester, INTEGER, body).parseoutcomes()
    assert outcomes["xfailed"] == 1
    assert "failed" not in outcomes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"expected_failures = {{{TEST!r}: 'keys are integers here'}}", "*XPASS(strict)*"),
        ("expected_failures = {'test_of_old': 'renamed'}", "*'test_of_old'*the suite lacks*"),
        (f"expected_failures = {{{TEST!r}: ''}}", "*each expected failure needs its reason*"),
        (f"{TEST} = None", f"*TestNewest replaces*{TEST}*expected_failures*"),
        (f"def {TEST}(self): pass", f"*TestNewest replaces*{TEST}*expected_failures*"),
    ],
)
def test_nothing_is_opted_out_of_in_silence(
    pytester: pytest.Pytester, body: str, said: str
) -> None:
    result = run(pytester, FLOAT, body)
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines([said])
