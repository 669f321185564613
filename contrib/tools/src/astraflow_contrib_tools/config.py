"""Keys of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from astraflow_core.config.models import ConfigModel, Name, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone
from astraflow_sandbox.config import SandboxTable
from astraflow_wire.images.parts import check_number


def _bounded(images: int) -> int:
    check_number(images)
    return images


MaxImages = Annotated[int, Field(ge=0), AfterValidator(_bounded)]
"""As many as a sequence may have, at most."""
EXAMPLE_ROLES = ("user", "assistant", "tool")


class McpConnectionKeys(ConfigModel):
    """How a server of the Model Context Protocol is reached: by ``command`` or by ``url``."""

    command: OrNone[list[str]] = Field(
        None,
        description="Program and arguments of a server that speaks on its standard streams; 'python' is the RaaS's own.",
    )
    url: OrNone[str] = Field(
        None, description="Address of a server that speaks streamable HTTP, such as http://…/mcp."
    )
    environment: dict[str, str] = Field(
        {}, description="Variables of the program, in addition to HOME, PATH and the like."
    )
    headers: dict[str, str] = Field(
        {},
        description="Headers of each request to url; '$NAME' is the variable NAME of the RaaS's environment.",
    )
    tools: OrNone[list[str]] = Field(
        None, description="Tools of the server that are offered; 'none': all of them."
    )
    start_deadline_s: Seconds = Field(
        30.0, description="Maximum time for the server to list its tools."
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


class McpServer(McpConnectionKeys):
    """``[workflow.mcp.NAME]``: a server whose tools the policy is offered."""

    shared: bool = Field(
        False, description="One connection for all episodes of a RaaS, not one for each episode."
    )


class PythonTool(SandboxTable):
    """``[workflow.python]``: a tool that runs what the policy writes, in a sandbox."""

    state: Literal["call", "episode"] = Field(
        "call",
        description="Lifetime of the interpreter's state: one call, or the episode, so that a call finds "
        "what earlier ones left.",
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
        None, description="Folder of the modules of functions; 'none': Python's search path."
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
    examples: list[dict[str, str]] = Field(
        [],
        description="Messages before each prompt that show how tools are called: role (user, assistant, tool) and content.",
    )
    calls: Literal["template", "python"] = Field(
        "template",
        description='Form of calls: that of the model\'s template, or plain text, name(key="value") alone on a line, for '
        "small models without tool calls.",
    )
    max_turns: PositiveInt = Field(
        8, description="Maximum replies per episode; tools that the last one calls are not run."
    )
    max_tokens: PositiveInt = Field(
        100_000, description="Maximum sampled tokens per episode, after which it ends."
    )
    max_calls_of_turn: PositiveInt = Field(
        8, description="Calls of a reply that are run; the others are answered by an error."
    )
    tool_deadline_s: Seconds = Field(
        30.0,
        description="Maximum duration of a tool call; after that the model gets an error.",
    )
    max_result: PositiveInt = Field(
        10_000,
        description="Maximum characters of a result that the model is shown; of a longer one its beginning "
        "and its end.",
    )
    max_images: MaxImages = Field(
        0,
        description="Maximum images of MCP servers' results that the model is shown in an episode; others are shown as "
        "'[image]'. The policy needs images = true.",
    )
    call_reward: Annotated[float, Field(allow_inf_nan=False)] = Field(
        0.0, description="Reward of a turn for each call that returned a result."
    )
    error_reward: Annotated[float, Field(allow_inf_nan=False)] = Field(
        0.0, description="Reward of a turn for each call that returned an error."
    )

    @field_validator("functions")
    @classmethod
    def _names_functions(cls, functions: list[str]) -> list[str]:
        for function in functions:
            if not all(function.partition(":")):
                raise ValueError(f"expected 'module:function', got {function!r}")
        return functions

    @field_validator("examples")
    @classmethod
    def _are_messages(cls, examples: list[dict[str, str]]) -> list[dict[str, str]]:
        for message in examples:
            if message.keys() != {"role", "content"} or message["role"] not in EXAMPLE_ROLES:
                raise ValueError(
                    f"expected role ({', '.join(EXAMPLE_ROLES)}) and content, got {message!r:.80}"
                )
        return examples

    @model_validator(mode="after")
    def _has_tools(self) -> Self:
        if not self.functions and not self.mcp and self.python is None:
            raise ValueError(
                "there are no tools: give functions, servers in [workflow.mcp.NAME], or [workflow.python]"
            )
        return self


class McpEnvironmentConfig(ConfigModel):
    """``[workflow.environment] use = "mcp"``"""

    server: McpConnectionKeys = Field(
        description="The server, a separate table: [workflow.environment.server]."
    )
    folder: OrNone[Path] = Field(
        None, description="Working folder of the server; 'none': that of the RaaS."
    )
    reset: OrNone[str] = Field(
        None,
        description="Tool that starts an episode and is not offered to the policy; its result is shown after the prompt. 'none': no such tool.",
    )
    score: OrNone[str] = Field(
        None,
        description="Tool that returns the reward of the episode and is not offered; 'none': the environment rewards nothing.",
    )
    scored: Literal["episode", "turn"] = Field(
        "episode",
        description="When the score is asked for: at the end, or after each turn, whose reward is the increase.",
    )
    keeps: bool = Field(
        False,
        description="Keep one connection for successive episodes, separated by `reset`, instead of a new one "
        "for each.",
    )
    end_tools: list[str] = Field(
        [], description="Tools that end the episode once they have returned a result."
    )
    final_message: Literal["ends", "asks"] = Field(
        "ends",
        description="Effect of a reply without a call: it ends the episode, or is answered by a request to "
        "call a tool.",
    )
    text_tool: OrNone[str] = Field(
        None,
        description="Tool with one argument, which is called with the text of each reply, for models without tool calls; "
        "'none': the tools are offered, and called.",
    )
    turns: PositiveInt = Field(16, description="Maximum replies per episode.")
    calls_of_turn: PositiveInt = Field(
        8,
        description="Calls of a reply that are run, one after the other; the others are answered by an error.",
    )
    tool_deadline_s: Seconds = Field(
        10.0,
        description="Maximum duration of a tool call. A turn takes at most twice as long, and the score once "
        "more, all of which step_deadline_s has to allow.",
    )
    max_result: PositiveInt = Field(
        10_000,
        description="Maximum characters of a result that the model is shown; of a longer one its beginning "
        "and its end.",
    )

    max_images: MaxImages = Field(
        0,
        description="Maximum images of results that the model is shown in an episode; others are shown as '[image]'. The "
        "policy needs images = true.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keeps and self.reset is None:
            raise ValueError(
                "keeps = true plays all episodes in one world: name the tool that resets it in reset"
            )
        if self.scored == "turn" and self.score is None:
            raise ValueError("scored = 'turn' needs score, the tool that returns the score")
        if hidden := [tool for tool in self.end_tools if tool in (self.reset, self.score)]:
            raise ValueError(
                f"the tool {hidden[0]!r} of end_tools is not offered: it resets or scores"
            )
        return self
