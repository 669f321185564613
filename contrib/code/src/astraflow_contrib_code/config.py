"""The keys of the reward and of the prompt sources."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_sandbox.config import SandboxTable


class CodeTestsConfig(ConfigModel):
    """``[reward] use = "code_tests"``"""

    score: Literal["fraction", "all"] = Field(
        "fraction", description="The share of tests that pass, or 1 for all of them and else 0."
    )
    program: Literal["block", "completion"] = Field(
        "block",
        description="Where the program is: in the last fenced block, or it is the whole prompt and completion.",
    )
    tests_key: str = Field("tests", description="Key of the prompt's tests.")
    sandbox: SandboxTable = Field(SandboxTable(), description="Where programs are run.")


class CodeTasksConfig(ConfigModel):
    """``use = "code_tasks"``"""

    kind: Literal["function", "program"] = Field(
        "function", description="A function of a list, or a program that reads and writes."
    )
    steps: Annotated[int, Field(ge=1, le=4)] = Field(
        2, description="Number of operations combined in a task."
    )
    split: Literal["train", "held_out"] = Field(
        "train", description="Nine tenths of all tasks, or the other tenth."
    )
    size: OrNone[PositiveInt] = Field(None, description="Prompts; 'none': the whole split.")
    tests: Annotated[int, Field(ge=1, le=50)] = Field(6, description="Hidden tests of each task.")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Seed that selects the tasks and their order."
    )


class HumanEvalConfig(ConfigModel):
    """``use = "human_eval"``"""

    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first problems, as many as this; 'none': all."
    )
