"""Keys of the workflow."""

from __future__ import annotations

from pydantic import Field, field_validator

from astraflow_core.config.models import ConfigModel


class WorkflowConfig(ConfigModel):
    """``[workflow] use = "solver_verifier"``"""

    solver: str = Field("solver", description="Policy that answers.")
    verifier: str = Field("verifier", description="Policy that checks the answer.")
    template: str = Field(
        "{prompt}{answer}?",
        description="Text that the verifier reads, with the prompt and the answer.",
    )

    @field_validator("template")
    @classmethod
    def _has_answer(cls, template: str) -> str:
        if "{answer}" not in template:
            raise ValueError("the template must contain {answer}")
        return template
