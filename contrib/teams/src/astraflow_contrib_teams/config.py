"""Keys of the workflows and of the reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_sandbox.config import SandboxTable

MOST_REQUESTS = 64


class RoleTable(ConfigModel):
    """``[workflow.ROLE]``"""

    policy: str | None = Field(
        default=None,
        description="Policy or frozen engine that plays the role; default: the one of the role's name, or the only policy.",
    )
    system: str | None = Field(
        default=None, description="System message, '' for none; default: that of the README."
    )
    template: str | None = Field(
        default=None,
        description="User's message, with placeholders in braces; default: that of the README.",
    )
    template_file: Path | None = Field(default=None, description="File with the template.")

    @model_validator(mode="after")
    def _one_template(self) -> Self:
        if self.template is not None and self.template_file is not None:
            raise ValueError("give template or template_file, not both")
        return self


class TeamConfig(ConfigModel):
    """Keys of every team."""

    chat: bool = Field(
        True,
        description="Messages by the model's chat template; false: plain text, the system message first.",
    )


class VerifiedSolverConfig(TeamConfig):
    """``[workflow] use = "verified_solver"``"""

    attempts: PositiveInt = Field(2, description="Maximum solutions per episode.")
    solver: RoleTable = Field(RoleTable(), description="Who solves.")
    verifier: RoleTable = Field(RoleTable(), description="Who accepts or rejects.")


class SelectedCodeConfig(TeamConfig):
    """``[workflow] use = "selected_code"``"""

    candidates: Annotated[int, Field(ge=2, le=MOST_REQUESTS)] = Field(
        2, description="Programs among which the selector chooses."
    )
    solver: RoleTable = Field(RoleTable(), description="Who writes the programs.")
    selector: RoleTable = Field(RoleTable(), description="Who chooses one.")


class TestedCodeConfig(TeamConfig):
    """``[workflow] use = "tested_code"``"""

    __test__ = False

    attempts: PositiveInt = Field(2, description="Maximum programs per episode.")
    most_tests: PositiveInt = Field(
        5, description="Maximum number of the tester's tests that are run."
    )
    solver: RoleTable = Field(RoleTable(), description="Who writes the program.")
    tester: RoleTable = Field(RoleTable(), description="Who writes tests.")
    sandbox: SandboxTable = Field(SandboxTable(), description="Where programs are run.")


class PlanAndSolveConfig(TeamConfig):
    """``[workflow] use = "plan_and_solve"``"""

    planner: RoleTable = Field(RoleTable(), description="Who writes the plan.")
    solver: RoleTable = Field(RoleTable(), description="Who follows it.")


class RecursiveConfig(TeamConfig):
    """``[workflow] use = "recursive"``"""

    depth: PositiveInt = Field(1, description="Maximum depth to which a task is divided.")
    width: PositiveInt = Field(3, description="Maximum parts of a task; further ones are left out.")
    agent: RoleTable = Field(RoleTable(), description="Who divides a task, or answers it.")
    solver: RoleTable = Field(RoleTable(), description="Who answers a part that is not divided.")
    merger: RoleTable = Field(
        RoleTable(), description="The role that combines the answers of the parts into one."
    )

    @property
    def most_requests(self) -> int:
        """Requests of an episode at most."""
        most = 1
        for _ in range(self.depth):
            most = 2 + self.width * most
            if most > MOST_REQUESTS:
                break
        return most

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.most_requests > MOST_REQUESTS:
            raise ValueError(
                f"depth {self.depth} and width {self.width} allow more than {MOST_REQUESTS} requests in an episode: "
                "lower one of them"
            )
        return self


class SelfPlayConfig(TeamConfig):
    """``[workflow] use = "self_play"``"""

    player: RoleTable = Field(RoleTable(), description="Who is trained.")
    opponent: RoleTable = Field(
        RoleTable(), description="The older version: a frozen engine that follows the policy."
    )
    judge: RoleTable = Field(
        RoleTable(), description="The role that judges which answer is better."
    )


class HiddenTestsConfig(ConfigModel):
    """``[reward] use = "hidden_tests"``"""

    tests_key: str = Field(
        "tests", description="Key of the prompt's tests, a list of {'input', 'output'}."
    )
    sandbox: SandboxTable = Field(SandboxTable(), description="Where programs are run.")
