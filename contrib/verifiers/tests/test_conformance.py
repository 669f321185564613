from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.types import Prompt
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import POLICIES, Subject, context, installed
from astraflow_testing.conformance.workflow import WorkflowConformance

ABOUT = pytest.mark.turns(
    "contrib/verifiers/**/*.py",
    "libs/gateway/src/**/*.py",
    "testing/src/astraflow_testing/conformance/workflow.py",
    "testing/src/astraflow_testing/conformance/prompt_source.py",
    "testing/src/astraflow_testing/conformance/_workflows/*.py",
    "testing/src/astraflow_testing/scripted_policies.py",
)


class TestPrompts(PromptSourceConformance):
    """Of a part of the data set: each configuration starts an interpreter in each test."""

    @pytest.fixture
    def component(self, python: str) -> Subject:
        keys = {"environment": "sums", "python": python, "skip": 1, "size": 2}
        return installed("prompt_source", "verifiers", keys)


@ABOUT
@pytest.mark.slow
class TestAllPrompts(PromptSourceConformance):
    @pytest.fixture
    def component(self, python: str) -> Subject:
        return installed("prompt_source", "verifiers", {"environment": "sums", "python": python})


@ABOUT
@pytest.mark.slow
class TestWorkflow(WorkflowConformance):
    @pytest.fixture
    def component(self, python: str) -> Subject:
        keys = {"python": python, "roles": {"critic": POLICIES[-1]}}
        return installed("workflow", "verifiers", keys, {**keys, "check_tokens": True})

    @pytest.fixture
    def prompts(self, tmp_path: Path, python: str) -> list[Prompt]:
        roles = {"roles": ["solver", "critic"]}
        keys = {"environment": "sums", "python": python, "arguments": roles}
        (factory,) = installed("prompt_source", "verifiers", keys).variants.values()
        source = factory(context("dataflow", tmp_path))
        return [source[index] for index in range(len(source))]
