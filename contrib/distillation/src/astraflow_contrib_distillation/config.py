"""The keys of the workflow."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from astraflow_core.config.models import ComponentTable, ConfigModel, Name
from astraflow_core.config.or_none import OrNone


def _names_a_workflow(table: dict[str, Any]) -> dict[str, Any]:
    ComponentTable.model_validate(table)
    return table


class TaughtConfig(ConfigModel):
    """``[workflow] use = "taught"``"""

    workflow: Annotated[dict[str, Any], AfterValidator(_names_a_workflow)] = Field(
        description="The workflow that plays the episodes: `use` and its keys."
    )
    policy: OrNone[Name] = Field(
        None, description="Policy that is taught; required if the run has several."
    )
    teacher: OrNone[Name] = Field(
        None,
        description="Engine that teaches: of `[engines.NAME]`, or the policy itself, which then needs `given`.",
    )
    teachers: dict[str, Name] = Field(
        default={},
        description="Prompt source, `source` of a prompt's data as `merged` has it → the engine that teaches its prompts; "
        "`teacher` teaches the others.",
    )
    given: str = Field(
        "",
        description="What the teacher reads in place of the prompt, such as '{prompt}\\nThe answer is {answer}.\\n': {NAME} is "
        "that of the prompt's data. '': the prompt as the policy read it.",
    )
    reward: Literal["run", "agreement"] = Field(
        "run",
        description="'run': of `workflow` or [reward]; 'agreement': the mean of log teacher - log policy over the sampled "
        "tokens, at most about 0.",
    )

    @model_validator(mode="after")
    def _somebody_teaches(self) -> TaughtConfig:
        if self.teacher is None and not self.teachers:
            raise ValueError("there is no teacher: set teacher, or teachers by prompt source")
        if self.given and "{prompt}" not in self.given:
            raise ValueError("given needs {prompt}, where the teacher reads the prompt")
        return self
