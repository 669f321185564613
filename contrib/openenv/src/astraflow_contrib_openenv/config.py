"""The keys of the environment and of its seeds."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, Interpreter, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys

PORT = "{port}"


class OpenEnvConfig(ConfigModel):
    """``use = "openenv"``"""

    url: OrNone[str] = Field(
        None,
        description="A server that runs, such as 'http://127.0.0.1:8000'; or module, or command.",
    )
    module: OrNone[str] = Field(
        None,
        description="The app of a server that each RaaS starts, 'package.server.app:app', by uvicorn of `python`.",
    )
    command: tuple[str, ...] = Field(
        (), description="Command of a server that each RaaS starts; '{port}' in it is a free port."
    )
    python: OrNone[Interpreter] = Field(
        None, description="Interpreter of module, a path or 'env:NAME'; 'none': that of the RaaS."
    )
    folder: OrNone[Path] = Field(
        None, description="The folder of module if it is not installed there."
    )
    sessions: PositiveInt = Field(
        1,
        description="Concurrent episodes per started server; another one is started for more.",
    )
    start_deadline_s: Seconds = Field(
        120.0, description="Maximum time for a server to answer at /health."
    )
    connect_deadline_s: Seconds = Field(10.0, description="Maximum time to connect.")
    token_variable: OrNone[str] = Field(
        None, description="Variable of the environment that has the bearer token for url."
    )
    max_message_mb: PositiveInt = Field(16, description="Longest message of a server, in MiB.")
    reset: dict[str, Any] = Field(
        {}, description="Data of each reset; data['reset'] of a prompt is added, and its seed."
    )
    fields: tuple[str, ...] = Field(
        (), description="Fields of an observation that are shown; none: all that are not empty."
    )
    metrics: tuple[str, ...] = Field(
        (), description="Fields of observations with numbers that are metrics of the episode."
    )
    actions: Literal["text", "json", "tools", "mcp"] = Field(
        "text",
        description="An action is the reply, in action_field; a JSON object that the reply has; a call of the tool act, whose "
        "parameters are the fields of the server's action; or a call of one of its MCP tools.",
    )
    action_field: Annotated[str, Field(min_length=1)] = Field(
        "message", description="Field of the action that the reply is put into."
    )
    action_type: Literal["text", "integer"] = Field(
        "text", description="Type of that field; for an integer, the last one in the reply counts."
    )
    action: dict[str, Any] = Field({}, description="Other fields of each action.")
    errors: Literal["fail", "tell"] = Field(
        "fail",
        description="Treatment of an error that the environment raises in a step: a failure, or an "
        "observation for the model, for environments that reject illegal moves that way.",
    )
    instructions: OrNone[str] = Field(
        None, description="Beginning of the first message; 'none': the observation."
    )
    turns: PositiveInt = Field(
        50, description="Maximum replies per episode, after which it is truncated."
    )

    @model_validator(mode="after")
    def _one_server(self) -> OpenEnvConfig:
        given = [name for name in ("url", "module", "command") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"give one of url, module and command, not {' and '.join(given) or 'none'}"
            )
        if self.command and not any(PORT in part for part in self.command):
            raise ValueError(f"command must say where its port goes: {PORT!r}")
        if self.url is not None:
            _check_url(self.url, self.token_variable)
        return self


def _check_url(url: str, token_variable: str | None) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
        raise ValueError(f"url {url!r} is not http://HOST:PORT or https://HOST")
    if token_variable and parts.scheme in ("http", "ws") and not _is_loopback(parts.hostname):
        raise ValueError("a token is not sent in plain text: url must begin with https://")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OpenEnvSeedsConfig(DrawnTaskKeys):
    """``use = "openenv_seeds"``"""

    reset: dict[str, Any] = Field({}, description="Data of the reset, data['reset'].")


class OpenEnvTasksConfig(ConfigModel):
    """``use = "openenv_tasks"``"""

    url: str = Field(description="A server that runs, such as 'http://127.0.0.1:8000'.")
    task_split: Annotated[str, Field(min_length=1)] = Field(
        "train", description="Split, of those that the server has."
    )
    skip: Annotated[int, Field(ge=0)] = Field(0, description="Tasks that are left out first.")
    size: OrNone[PositiveInt] = Field(None, description="Number of tasks after those; 'none': all.")
    reset: dict[str, Any] = Field({}, description="Other data of the reset, data['reset'].")
    token_variable: OrNone[str] = Field(
        None, description="Variable of the environment that has the bearer token for url."
    )
    deadline_s: Seconds = Field(60.0, description="Maximum time for the server to list them.")

    @model_validator(mode="after")
    def _over_http(self) -> OpenEnvTasksConfig:
        _check_url(self.url, self.token_variable)
        if not self.url.startswith("http"):
            raise ValueError(f"url {self.url!r} is not http://HOST:PORT or https://HOST")
        return self
