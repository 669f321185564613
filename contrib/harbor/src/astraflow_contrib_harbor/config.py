"""The keys of the environment and of its prompt source."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone


class ShellLimits(ConfigModel):
    """What a command may use, and the tests of a task."""

    cpu_s: PositiveInt = Field(default=4, description="Seconds of processor time of a command.")
    deadline_s: Seconds = Field(
        default=10.0,
        description="Seconds of wall time of a command. step_deadline_s of the workflow has to allow twice as long, and the "
        "wait for a processor.",
    )
    memory_mb: PositiveInt = Field(
        default=512, description="Address space of each process of a command."
    )
    disk_mb: PositiveInt = Field(
        default=64, description="All files of an episode, which are kept in memory."
    )
    output_kb: PositiveInt = Field(
        default=256,
        description="Maximum output of a command; one that writes more is stopped.",
    )
    packages: list[str] = Field(
        default=[],
        description="Packages of the RaaS that Python programs may import, such as numpy.",
    )


class HarborConfig(ConfigModel):
    """``use = "harbor"``"""

    turns: PositiveInt = Field(
        default=16, description="Maximum replies per episode; the tests run after the last."
    )
    actions: Literal["tools", "text"] = Field(
        default="tools", description="Commands are arguments of a tool, or tagged in the reply."
    )
    wording: Literal["plain", "terse"] = Field(
        default="plain",
        description="The instruction and how commands are given; or the instruction alone.",
    )
    completes: OrNone[str] = Field(
        default=None,
        description="Command that the reply completes in an episode of one turn, such as 'echo {} > "
        "answer.txt'; 'none': replies are commands.",
    )
    max_output: PositiveInt = Field(
        default=5000,
        description="Maximum characters of a command's output that the model is shown: its beginning and its end.",
    )
    sandbox: ShellLimits = Field(
        default=ShellLimits(), description="What a command may use; a separate table."
    )

    @model_validator(mode="after")
    def _completes_once(self) -> Self:
        if self.completes is not None and self.completes.count("{}") != 1:
            raise ValueError("completes: write {} once, in the place of the reply")
        if self.completes is not None and self.turns != 1:
            raise ValueError(f"completes is for episodes of one turn; turns is {self.turns}")
        return self


class HarborTasksConfig(ConfigModel):
    """``use = "harbor_tasks"``"""

    path: Path = Field(
        description="Folder whose subfolders are tasks; they have to be at the same place where episodes run."
    )
    split: Literal["all", "train", "held_out"] = Field(
        default="all",
        description="All tasks, or those of a part by the instruction alone: about four fifths, or the others.",
    )
    limit: OrNone[PositiveInt] = Field(
        default=None, description="Only the first tasks by name, as many as this; 'none': all."
    )
    images: list[str] = Field(
        default=["ubuntu", "debian", "python"],
        description="Images that a Dockerfile may start from, by their names without tag: this host takes their place.",
    )
    run_lines: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="Treatment of a task whose Dockerfile has RUN: refuse it, or skip the line, for a host "
        "that already has what it would install.",
    )
    unplayable: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="Treatment of tasks that cannot be played without a container: refuse the run, or leave "
        "them out and log how many.",
    )
