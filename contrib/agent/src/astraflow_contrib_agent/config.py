"""Keys of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from astraflow_core.config.models import PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_gateway.listening_keys import GatewayKeys

Deviation = Literal["temperature", "top_p", "top_k", "min_p"]


class AgentConfig(GatewayKeys):
    """``[workflow] use = "agent"``; one of ``target``, ``command`` and ``url``."""

    target: OrNone[str] = Field(
        None,
        description="'module:function' that plays an episode, async or not; called with the task.",
    )
    command: OrNone[list[str]] = Field(
        None,
        description="Program and arguments, started for each episode, with the task on its standard input.",
    )
    url: OrNone[str] = Field(
        None,
        description="Service to which the task of each episode is posted; its reply ends the episode.",
    )
    folder: OrNone[Path] = Field(
        None,
        description="Folder of the module of target and working folder of commands; 'none': that of the RaaS.",
    )
    python: OrNone[str] = Field(
        None,
        description="Interpreter of target, with the packages of the agent; 'none': that of the RaaS.",
    )
    policy: OrNone[str] = Field(
        None,
        description="Policy of a request whose model is not one; 'none': the only one of the run.",
    )
    max_calls: PositiveInt = Field(
        200,
        description="Maximum requests of an episode; further ones are answered that the budget is spent.",
    )
    max_tokens: PositiveInt = Field(
        100_000, description="Maximum sampled tokens per episode, after which the budget is spent."
    )
    deadline_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description="Seconds after which the agent is terminated and its episode fails."
    )
    grace_s: OrNone[Annotated[float, Field(ge=0)]] = Field(
        None,
        description="Last seconds of deadline_s, in which requests are answered that the budget is spent, so that the "
        "agent can exit on its own; 'none': a tenth of deadline_s, at most 30.",
    )
    deviations: list[Deviation] = Field(
        [], description="Settings of sampling that agents may choose; the others are the run's."
    )
    train_auxiliary: bool = Field(
        False,
        description="Also train requests without tools of an agent that has some, such as titles.",
    )

    @property
    def answering_s(self) -> float:
        """Seconds in which requests are answered by the model."""
        grace_s = min(self.deadline_s / 10, 30.0) if self.grace_s is None else self.grace_s
        return self.deadline_s - grace_s

    @field_validator("target")
    @classmethod
    def _names_a_function(cls, target: str | None) -> str | None:
        if target is not None and not all(target.partition(":")):
            raise ValueError(f"expected 'module:function', got {target!r}")
        return target

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [name for name in ("target", "command", "url") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(
                f"give one of target, command and url, and 'none' for the others; found {found}"
            )
        if self.answering_s <= 0:
            raise ValueError(
                f"grace_s is {self.grace_s:g}; expected less than deadline_s, which is {self.deadline_s:g}"
            )
        if self.command == []:
            raise ValueError("command is empty: give a program and its arguments")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is {self.url!r}; expected http:// or https://")
        return self
