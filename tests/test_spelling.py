"""The example of docs/write-a-workflow.md keeps what the suites demand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from spelling import SecondTry, SecondTryConfig

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import Prompt
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, context, installed
from astraflow_testing.conformance.workflow import WorkflowConformance
from astraflow_testing.scripted_policies import FailedAnswer, ScriptedPolicies, Truncated


class TestSecondTry(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("workflow", "spelling:SecondTry", {}, {"tries": 3})


class TestSpelled(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "spelling:Spelled", {}, {"per_try": 0.0})


class TestWords(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        (tmp_path / "words.txt").write_text("lamp\nriver\nÄpfel\n", encoding="utf-8")
        return installed("prompt_source", "spelling:Words", {"path": str(tmp_path / "words.txt")})

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        made = []
        for name, text in {"two": "lamp\ntwo words\n", "twice": "lamp\nlamp\n"}.items():
            file = tmp_path / name
            file.write_text(text)
            subject = installed("prompt_source", "spelling:Words", {"path": str(file)})
            made.append(Damaged(subject, (f"{file}:2",)))
        return made


def test_a_wrong_answer_is_asked_again(tmp_path: Path) -> None:
    workflow = SecondTry(SecondTryConfig(tries=3), context("raas", tmp_path, policies=("speller",)))
    policies = ScriptedPolicies(("speller",), says={"speller": ["lamp", "pmal"]})
    prompt = Prompt("lamp", {"prompt": "Spell lamp backwards.", "answer": "pmal"})
    trajectory = asyncio.run(workflow.run_episode(policies.engines(), prompt))

    assert trajectory is not None and trajectory.metrics == {"tries": 2.0}
    assert [each.text for each in trajectory.completions] == ["lamp", "pmal"]
    first, second = policies.asked
    assert first.text == "<user>Spell lamp backwards.\n<assistant>"
    assert second.text.endswith("<user>No. Try again.\n<assistant>")
    (sequence,) = trajectory.sequences
    tokenizer = policies.tokenizer
    trained = tokenizer.decode(sequence.tokens[sequence.loss_mask], skip_special=False)
    assert trained == "lamp<end>pmal<end>"


def test_an_answer_that_was_cut_is_no_other_word(tmp_path: Path) -> None:
    workflow = SecondTry(SecondTryConfig(tries=1), context("raas", tmp_path, policies=("speller",)))
    policies = ScriptedPolicies(("speller",), says={"speller": [Truncated("pm")]})
    prompt = Prompt("lamp", {"prompt": "Spell lamp backwards.", "answer": "pmal"})
    trajectory = asyncio.run(workflow.run_episode(policies.engines(), prompt))

    assert trajectory is not None
    (completion,) = trajectory.completions
    assert (completion.text, completion.finish_reason) == ("pm", "length")


def test_an_error_in_the_second_turn_ends_the_episode(tmp_path: Path) -> None:
    workflow = SecondTry(SecondTryConfig(tries=3), context("raas", tmp_path, policies=("speller",)))
    script = {"speller": ["lamp", FailedAnswer("the device is out of memory"), "pmal"]}
    policies = ScriptedPolicies(("speller",), says=script)
    prompt = Prompt("lamp", {"prompt": "Spell lamp backwards.", "answer": "pmal"})
    with pytest.raises(AstraFlowError, match="the device is out of memory"):
        asyncio.run(workflow.run_episode(policies.engines(), prompt))
    assert len(policies.asked) == 2
