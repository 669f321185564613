"""Keys of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from astraflow_core.config.models import ConfigModel, Name, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone
from astraflow_sandbox.config import SandboxTable


class McpServer(ConfigModel):
    """``[workflow.mcp.NAME]``: a server of the Model Context Protocol, by ``command`` or by ``url``."""

    command: OrNone[list[str]] = Field(
        None, description="Program and arguments of a server that speaks on its standard streams."
    )
    url: OrNone[str] = Field(
        None, description="Address of a server that speaks streamable HTTP, such as http://…/mcp."
    )
    environment: dict[str, str] = Field(
        {}, description="Variables of the program, beside HOME, PATH and the like."
    )
    headers: dict[str, str] = Field(
        {},
        description="Headers of each request to url; '$NAME' is the variable NAME of the RaaS's environment.",
    )
    shared: bool = Field(
        False, description="One connection for all episodes of a RaaS, not one for each episode."
    )
    tools: OrNone[list[str]] = Field(
        None, description="Tools of the server that are offered; 'none': all of them."
    )
    start_deadline_s: Seconds = Field(
        30.0, description="Longest that the server may take until it has told its tools."
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give one of command and url")
        if self.command == []:
            raise ValueError("command is empty: give a program and its arguments")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is {self.url!r}; expected http:// or https://")
        return self


class PythonTool(SandboxTable):
    """``[workflow.python]``: a tool that runs what the policy writes, in a sandbox."""

    state: Literal["call", "episode"] = Field(
        "call",
        description="What a call finds: nothing, or what the calls of its episode before it have left.",
    )


class ToolsConfig(ConfigModel):
    """``[workflow] use = "tools"``"""

    policy: OrNone[str] = Field(
        None, description="Policy that answers; 'none': the only one of the run."
    )
    functions: list[str] = Field(
        [],
        description="'module:function' of each tool, async or not: its name, the schema of its arguments and its "
        "description are those of the function.",
    )
    folder: OrNone[Path] = Field(
        None, description="Where the modules of functions lie; 'none': where Python looks."
    )
    workers: PositiveInt = Field(
        2, description="Processes of a RaaS that run functions, each one call at a time."
    )
    mcp: dict[Name, McpServer] = Field({}, description="Name → an MCP server.")
    python: OrNone[PythonTool] = Field(
        None, description="A tool 'python' that runs code in a sandbox; 'none': there is none."
    )
    system: str = Field(
        "", description="System message of a prompt that has none; empty: no such message."
    )
    max_turns: PositiveInt = Field(
        8, description="Replies of an episode; tools that the last one calls are not run."
    )
    max_tokens: PositiveInt = Field(
        100_000, description="Sampled tokens of an episode, after which it ends."
    )
    max_calls_of_turn: PositiveInt = Field(
        8, description="Calls of a reply that are run; the others are answered by an error."
    )
    tool_deadline_s: Seconds = Field(
        30.0, description="Longest that a call of a tool may take; the model is told if it is late."
    )
    max_result: PositiveInt = Field(
        10_000,
        description="Characters of a result that the model is shown; of a longer one its beginning and its end.",
    )
    call_reward: Annotated[float, Field(allow_inf_nan=False)] = Field(
        0.0, description="What a turn earns for each call that gave a result."
    )
    error_reward: Annotated[float, Field(allow_inf_nan=False)] = Field(
        0.0, description="What a turn earns for each call that gave an error."
    )

    @field_validator("functions")
    @classmethod
    def _names_functions(cls, functions: list[str]) -> list[str]:
        for function in functions:
            if not all(function.partition(":")):
                raise ValueError(f"expected 'module:function', got {function!r}")
        return functions

    @model_validator(mode="after")
    def _has_tools(self) -> Self:
        if not self.functions and not self.mcp and self.python is None:
            raise ValueError(
                "there are no tools: give functions, servers in [workflow.mcp.NAME], or [workflow.python]"
            )
        return self
