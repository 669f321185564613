"""What a teacher reads and gives, against its own scores of texts that are written out here; what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import ConfigError, UserError, WorkflowError
from astraflow_core.types import Prompt, Trajectory
from astraflow_testing.conformance.subject import context
from astraflow_testing.scripted_policies import ScriptedPolicies

INNER = {"workflow": {"use": "single_turn", "policy": "solver"}, "policy": "solver"}
SUM = Prompt("sums/1", {"prompt": "1+2=", "answer": "3", "source": "sums"})


def taught(**keys: Any) -> Any:
    selected, config = Catalog.discover().validate_options(
        "workflow", "taught", INNER | keys, "workflow"
    )
    return selected.build(
        config, context("raas", Path("x"), policies=("solver",), frozen=("big", "small"))
    )


def run_of(temperature: float = 1.0) -> ScriptedPolicies:
    run = ScriptedPolicies(("solver",), ("big", "small"))
    return replace(run, sampling=replace(run.sampling, temperature=temperature))


def played(workflow: Any, prompt: Prompt = SUM, run: ScriptedPolicies | None = None) -> Trajectory:
    found = asyncio.run(workflow.run_episode((run or run_of()).engines(), prompt))
    assert isinstance(found, Trajectory)
    return found


def scores(name: str, *parts: Any) -> Any:
    engine = run_of().engines()[name]
    tokens = [engine.tokenizer.encode(part) if isinstance(part, str) else part for part in parts]
    return asyncio.run(engine.score(np.concatenate(tokens)))


def test_the_teacher_of_the_prompts_source_scores_what_was_sampled() -> None:
    workflow = taught(teacher="big", teachers={"proofs": "small"}, reward="agreement")
    for source, teacher in (("sums", "big"), ("proofs", "small")):
        trajectory = played(workflow, replace(SUM, data={**SUM.data, "source": source}))
        (sequence,) = trajectory.sequences
        wanted = np.where(sequence.loss_mask, scores(teacher, sequence.tokens), 0)
        np.testing.assert_array_equal(sequence.teacher_logprobs, wanted)
        gap = (wanted - sequence.logprobs)[sequence.loss_mask].astype(np.float64).mean()
        assert trajectory.rewards == {"solver": pytest.approx(gap, rel=1e-5)}


def test_a_policy_that_is_given_the_answer_teaches_itself() -> None:
    workflow = taught(teacher="solver", given="{prompt}\nThe answer is {answer}.\n")
    trajectory = played(workflow)
    (sequence,) = trajectory.sequences
    sampled = sequence.tokens[sequence.loss_mask]
    told = scores("solver", "1+2=\nThe answer is 3.\n", sampled)
    assert sequence.teacher_logprobs is not None and not trajectory.rewards
    np.testing.assert_array_equal(
        sequence.teacher_logprobs[sequence.loss_mask], told[-len(sampled) :]
    )
    assert not sequence.teacher_logprobs[~sequence.loss_mask].any()


def test_messages_are_given_the_answer_in_the_last_one_of_the_user() -> None:
    workflow = taught(teacher="big", given="{prompt} ({answer})")
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    (sequence,) = played(workflow, replace(SUM, data={"prompt": said, "answer": 7})).sequences
    sampled = sequence.tokens[sequence.loss_mask]
    told = run_of().engines()["big"].render([*said[:2], {"role": "user", "content": "c (7)"}])
    assert sequence.teacher_logprobs is not None
    np.testing.assert_array_equal(
        sequence.teacher_logprobs[sequence.loss_mask], scores("big", told, sampled)[-len(sampled) :]
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"teacher": "huge"}, r"'huge' is not an engine of the run, which has 'solver', 'big', 'small'; add \[engines.huge\]"),
        ({"teacher": "solver"}, "cannot teach itself what it knows; set given"),
        ({"teacher": "big", "policy": "verifier"}, "policy is 'verifier', and the run has 'solver'"),
    ],
)  # fmt: skip
def test_what_cannot_teach_is_refused_when_it_is_built(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        taught(**keys)


def test_a_missing_teacher_and_a_text_without_the_prompt_are_mistakes_of_the_file() -> None:
    for keys, said in (
        ({}, "there is no teacher"),
        ({"teacher": "big", "given": "{answer}"}, "given needs {prompt}"),
    ):
        with pytest.raises(ConfigError, match=said):
            taught(**keys)


def test_what_only_an_episode_shows_is_refused_in_the_first_one() -> None:
    foreign = run_of()
    foreign.handles["small"].tokenizer = type(foreign.tokenizer)(
        "{{ messages }}", specials=("<x>",)
    )
    for workflow, prompt, run, said in (
        (taught(teacher="big", teachers={"proofs": "small"}), SUM, foreign, "teacher 'small' has another tokenizer than policy 'solver'"),
        (taught(teacher="big"), SUM, run_of(0.7), "temperature is 0.7, and a teacher scores at 1"),
        (taught(teachers={"proofs": "big"}), SUM, run_of(), "there is no teacher for prompt 'sums/1' of source 'sums'"),
        (taught(teacher="big", given="{prompt}{proof}"), SUM, run_of(), "given names {proof}, and the data .* has 'prompt', 'answer'"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            played(workflow, prompt, run)
    assert played(taught(teacher="big"), run=run_of(0.0)).sequences[0].teacher_logprobs is not None


def test_a_workflow_that_acts_on_its_prompt_cannot_be_replayed() -> None:
    class Twice:
        async def run_episode(self, engines: Any, prompt: Prompt) -> Trajectory:
            solver = engines["solver"]
            tokens = solver.render(prompt.data["prompt"])
            made = [await solver.generate(tokens) for _ in prompt.data["prompt"]]
            return Trajectory((solver.sequence(tokens, made[-1]),))

    workflow = taught(teacher="big", given="{prompt}{prompt}")
    workflow._workflow = Twice()
    with pytest.raises(
        WorkflowError, match="asks policy 'solver' more often than with its own; leave `given` out"
    ):
        played(workflow)
