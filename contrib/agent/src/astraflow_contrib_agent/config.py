"""Keys of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_core.errors import UserError
from astraflow_gateway.listening import Listening

Deviation = Literal["temperature", "top_p", "top_k", "min_p"]


class AgentConfig(ConfigModel):
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
        description="Where the module of target lies and commands are run; 'none': as the RaaS.",
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
        description="Requests of an episode; each further one is told that the budget is spent.",
    )
    max_tokens: PositiveInt = Field(
        100_000, description="Sampled tokens of an episode, after which the budget is spent."
    )
    deadline_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description="Seconds after which the agent is ended, and its episode has failed."
    )
    bind: str = Field("127.0.0.1", description="Address at which the gateway listens.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port of the gateway; 0: a free one."
    )
    address: OrNone[str] = Field(
        None,
        description="Name by which agents find the host of the RaaS; 'none': bind, or the host's own name.",
    )
    certificate: OrNone[Path] = Field(
        None, description="Certificate of the gateway with its chain (PEM); 'none': no TLS."
    )
    private_key: OrNone[Path] = Field(None, description="Key of the certificate (PEM).")
    allow_plain_text: bool = Field(
        False, description="Listen beyond loopback without TLS: who is on the way reads all."
    )
    deviations: list[Deviation] = Field(
        [], description="Settings of sampling that agents may choose; the others are the run's."
    )
    train_auxiliary: bool = Field(
        False,
        description="Also train requests without tools of an agent that has some, such as titles.",
    )

    @field_validator("target")
    @classmethod
    def _names_a_function(cls, target: str | None) -> str | None:
        if target is not None and not all(target.partition(":")):
            raise ValueError(f"expected 'module:function', got {target!r}")
        return target

    @property
    def listening(self) -> Listening:
        """Where the gateway listens."""
        return Listening(
            self.bind,
            self.port,
            self.address or "",
            self.certificate,
            self.private_key,
            self.allow_plain_text,
        )

    @model_validator(mode="after")
    def _listens_safely(self) -> Self:
        try:
            _ = self.listening
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [name for name in ("target", "command", "url") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(
                f"give one of target, command and url, and 'none' for the others; found {found}"
            )
        if self.command == []:
            raise ValueError("command is empty: give a program and its arguments")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is {self.url!r}; expected http:// or https://")
        return self
