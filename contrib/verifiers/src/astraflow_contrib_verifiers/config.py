"""Keys of the prompt source and of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone
from astraflow_gateway.listening_keys import GatewayKeys


class WorkerKeys(ConfigModel):
    """Where environments run."""

    python: str = Field(
        "env:verifiers",
        description="Interpreter that has verifiers and the environment, a path or 'env:NAME' (`astraflow env create`).",
    )
    folder: OrNone[Path] = Field(
        None,
        description="Folder of the environment's module; 'none': it is installed.",
    )


class VerifiersPromptsConfig(WorkerKeys):
    """``[prompts] use = "verifiers"``"""

    environment: Annotated[str, Field(min_length=1)] = Field(
        description="Module of the environment, such as 'my_env': of v1 a taskset, of v0 with load_environment."
    )
    arguments: dict[str, Any] = Field(
        {},
        description="v0: arguments of load_environment. v1: the environment's configuration, that of its tasks in "
        "'taskset', that of a role under its name.",
    )
    split: Literal["train", "eval"] = Field(
        "train",
        description="eval: the environment's evaluation data, which v0 has; v1 names it in arguments.",
    )
    skip: Annotated[int, Field(ge=0)] = Field(0, description="Tasks left out at the beginning.")
    size: OrNone[PositiveInt] = Field(None, description="Tasks taken; 'none': all of them.")
    load_deadline_s: Seconds = Field(
        300.0, description="Maximum time for the environment to list its tasks."
    )


class VerifiersWorkflowConfig(GatewayKeys, WorkerKeys):
    """``[workflow] use = "verifiers"``"""

    roles: dict[str, str] = Field(
        {},
        description="Role of a multi-agent environment → policy or frozen engine that plays it.",
    )
    policy: OrNone[str] = Field(
        None,
        description="Policy of every role that roles leaves out; 'none': the first of the run.",
    )
    tokenizers: dict[str, str] = Field(
        {},
        description="v1: policy → folder of its tokenizer. Prompts are then rendered and encoded by verifiers, and sampled "
        "as token ids; without it the gateway renders them.",
    )
    renderer: OrNone[str] = Field(
        None,
        description="v1: renderer of the tokenizer, such as 'qwen3'; 'none': the chat template, without tools.",
    )
    check_tokens: bool = Field(
        False,
        description="Fail an episode if verifiers recorded other tokens or log-probs than those that are "
        "trained; v1 records those of policies in tokenizers.",
    )
    workers: PositiveInt = Field(
        1, description="Processes of a RaaS that play, each with many episodes at once."
    )
    worker_memory_mb: OrNone[PositiveInt] = Field(
        None,
        description="Address space of such a process, in MiB; 'none': no bound. An episode that needs more fails.",
    )
    max_calls: PositiveInt = Field(
        200,
        description="Maximum requests of a role per episode; further ones are rejected because the budget is spent.",
    )
    max_tokens: PositiveInt = Field(
        100_000,
        description="Maximum sampled tokens of a role per episode; further requests are rejected in the same way.",
    )
    deadline_s: Seconds = Field(
        600.0, description="Seconds after which an episode is ended and fails."
    )
