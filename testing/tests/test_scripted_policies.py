"""Scripted policies answer as the script says."""

from __future__ import annotations

import asyncio

import pytest

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateResult, Sampling
from astraflow_testing.scripted_policies import FailedAnswer, ScriptedPolicies, Truncated


def ask(policies: ScriptedPolicies, policy: str, text: str) -> GenerateResult:
    engine = policies.engines()[policy]
    return asyncio.run(engine.generate(engine.render(text)))


def test_each_policy_has_its_answers_in_order() -> None:
    policies = ScriptedPolicies(("a", "b"), says={"a": ["one", "two"], "b": [b"\xff"]})
    results = [ask(policies, policy, f"to {policy}") for policy in "aba"]
    texts = [policies.engines()["a"].completion(result).text for result in results]
    assert texts == ["one", "\ufffd", "two"]
    assert [(each.policy, each.text) for each in policies.asked] == [
        ("a", "to a"), ("b", "to b"), ("a", "to a"),
    ]  # fmt: skip
    assert [each.result for each in policies.asked] == results


@pytest.mark.parametrize(("policy", "answers"), [("a", 1), ("b", 0)])
def test_a_request_that_the_script_does_not_have_is_named(policy: str, answers: int) -> None:
    policies = ScriptedPolicies(("a", "b"), says={"a": ["one"]})
    for _ in range(answers):
        ask(policies, policy, "once")
    told = rf"'{policy}' was asked {answers + 1} times.* {answers} answers.*'once more'"
    with pytest.raises(AssertionError, match=told):
        ask(policies, policy, "once more")


def test_an_answer_ends_by_itself_or_for_its_length() -> None:
    says = {"a": ["four", "four", Truncated("four"), Truncated("four")]}
    policies = ScriptedPolicies(("a",), says=says, sampling=Sampling(max_tokens=5))
    results = [ask(policies, "a", "?")]
    policies.sampling = Sampling(max_tokens=3)
    results.append(ask(policies, "a", "?"))
    policies.sampling = Sampling(max_tokens=5)
    results.append(ask(policies, "a", "?"))
    policies.sampling = Sampling(max_tokens=3)
    results.append(ask(policies, "a", "?"))
    assert [(len(each.tokens), each.finish_reason) for each in results] == [
        (5, "stop"), (3, "length"), (4, "length"), (3, "length"),
    ]  # fmt: skip


def test_an_error_is_raised_where_it_stands_and_the_next_request_is_answered() -> None:
    policies = ScriptedPolicies(("a",), says={"a": [FailedAnswer("out of memory"), "one"]})
    with pytest.raises(AstraFlowError, match=r"^out of memory$"):
        ask(policies, "a", "?")
    assert policies.asked[0].result is None and policies.asked[0].over
    assert ask(policies, "a", "?").finish_reason == "stop"


def test_only_a_trained_policy_has_new_versions() -> None:
    policies = ScriptedPolicies(("a",), ("judge",), says=lambda policy, text: "four")
    assert sorted(set(ask(policies, "a", "?").versions.tolist())) == [1, 2]
    assert set(ask(policies, "judge", "?").versions.tolist()) == {0}
