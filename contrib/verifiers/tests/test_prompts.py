"""The tasks of an environment, read through a process of another interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_verifiers.config import VerifiersPromptsConfig
from astraflow_contrib_verifiers.environment import environment
from astraflow_contrib_verifiers.prompts import VerifiersPrompts
from astraflow_core.errors import PreflightError, PromptError, UserError
from astraflow_testing.conformance.subject import context


def prompts(place: Path, python: str, environment: str = "sums", **keys: Any) -> VerifiersPrompts:
    config = VerifiersPromptsConfig(environment=environment, python=python, **keys)
    return VerifiersPrompts(config, context("dataflow", place))


def test_tasks_have_an_index_and_a_digest(tmp_path: Path, python: str) -> None:
    some = prompts(tmp_path, python, skip=1, size=2, arguments={"does": "endless"})
    assert [each.id for each in (some[0], some[1])] == ["sums:train:1", "sums:train:2"]
    assert some[0].data["prompt"] == "1+1?" and some[0].data["answer"] == "2"
    task = some[0].data["verifiers"]
    assert task["index"] == 1 and task["roles"] == ["agent"]
    others = prompts(tmp_path, python, arguments={"salt": 1, "count": 2})
    assert others[1].data["verifiers"]["digest"] != task["digest"]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"environment": "no_such"}, "cannot list its tasks: ModuleNotFoundError: No module named 'no_such' .*stand_in_environment.py:"),
        ({"arguments": {"does": "endless"}}, "have no end: set `size`"),
        ({"skip": 4}, r"has no tasks in split 'train' after the first 4 \(skip\)"),
    ],
)  # fmt: skip
def test_spaces_that_cannot_be_written_as_text_are_refused(
    tmp_path: Path, python: str, keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(PromptError, match=says):
        prompts(tmp_path, python, **keys)


def test_an_interpreter_that_is_not_here_is_refused_with_what_makes_it(tmp_path: Path) -> None:
    made = r"env create nowhere --plugin verifiers"
    with pytest.raises(PreflightError, match=f"'env:nowhere', which is not an interpreter.*{made}"):
        prompts(tmp_path, "env:nowhere")
    with pytest.raises(PreflightError, match="folder is 'nodir', which is not a folder here"):
        prompts(tmp_path, "python3", folder="nodir")
    with pytest.raises(PromptError, match="ended with exit code 1 and no tasks"):
        prompts(tmp_path, "false")


def test_each_generation_has_a_recipe() -> None:
    assert environment(None).extra == "runtime-v1" and environment("runtime-v0").extra
    with pytest.raises(UserError, match="no extra 'v2'"):
        environment("v2")
