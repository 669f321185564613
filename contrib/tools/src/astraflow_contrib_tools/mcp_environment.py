"""The environment ``mcp``: a server of the Model Context Protocol is the world that a policy acts in."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from astraflow_contrib_tools.config import McpEnvironmentConfig
from astraflow_contrib_tools.content import Content, ShownImages, bounded, text_of
from astraflow_contrib_tools.mcp_connection import ConnectionUse, McpConnection
from astraflow_contrib_tools.results import ToolError
from astraflow_contrib_tools.toolbox import ToolAnswer, Toolbox
from astraflow_core.errors import EnvironmentFailed, PreflightError, PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import Messages, said

WHO = "environment 'mcp'"
SEEDS = 2**31
"""Seeds that a server is given lie below this, since not every language has larger integers in JSON."""
CALL = "Call a tool."
_SCORES = ("score", "reward", "result")


class McpEnvironment:
    """The tools of a server are offered to the policy, except those that reset and score the world, which the environment
    calls: with the arguments that the prompt gives, ``seed`` and ``reply`` (the last text of the policy), as far as the
    tool takes them. By default each episode has its own connection, and so its own server if ``command`` starts it."""

    def __init__(self, config: McpEnvironmentConfig, context: ComponentContext) -> None:
        self._config = config
        self._use = ConnectionUse(WHO, config.folder, config.tool_deadline_s, config.max_result)
        self._connection: McpConnection | None = None
        self._task, self._seed = Prompt(""), 0
        self._shown = ShownImages(config.max_images)
        self._toolbox = Toolbox([], self._shown)
        self._left, self._score = 0, 0.0
        self._argument = ""
        self._counts: dict[str, float] = {}

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Connect, reset the world and show the prompt. :class:`PromptError` if there is nothing to show."""
        self._task, self._seed, self._left = task, seed % SEEDS, self._config.turns
        self._counts = {"tool_calls": 0.0, "tool_errors": 0.0}
        messages = _opening(task, self._config.reset is not None)
        connection = await self._connected()
        kept = {name for name in (self._config.reset, self._config.score) if name is not None}
        self._shown = ShownImages(self._config.max_images)
        offered = [tool for tool in connection.tools if tool.name not in kept]
        self._toolbox = Toolbox(offered, self._shown)
        for name in (*kept, *self._config.end_tools):
            connection.tool(name)
        self._argument = _only_argument(connection, self._config.text_tool)
        if self._config.reset is not None:
            shown = await self._hidden_call(connection, self._config.reset, "")
            shown = self._shown.of(bounded(shown, self._config.max_result))
            messages = (*messages, {"role": "user", "content": shown}) if shown else messages
        if not messages:
            raise PromptError(f"prompt {task.id!r} has no 'prompt', and the server shows nothing")
        per_turn = self._config.scored == "turn"
        self._score = await self._scored(connection, "") if per_turn else 0.0
        return Observation(messages, tools=self._tools, metrics=dict(self._counts))

    async def step(self, action: Action) -> Observation:
        """Make the calls of a reply, in their order."""
        connection = self._connection
        assert connection is not None, "an episode has begun"
        self._left -= 1
        messages, ended = await self._answered(action)
        outcome = Outcome.FINISHED if ended else None
        if outcome is None and self._left == 0:
            outcome = Outcome.TRUNCATED
        reward = 0.0
        if self._config.score is not None and (outcome or self._config.scored == "turn"):
            score = await self._scored(connection, action.text)
            reward, self._score = score - self._score, score
        return Observation(messages, reward, outcome, self._tools, metrics=dict(self._counts))

    async def close(self) -> None:
        """End the connection, and a server that was started for it."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    @property
    def _tools(self) -> tuple[Mapping[str, Any], ...]:
        return () if self._config.text_tool else tuple(self._toolbox.offers)

    async def _connected(self) -> McpConnection:
        """The connection of the last episode if the next may have it, or a new one."""
        held = self._connection
        if held is not None and self._config.keeps and not held.gone:
            return held
        await self.close()
        connection = McpConnection("server", self._config.server, self._use)
        await connection.open()
        self._connection = connection
        return connection

    async def _answered(self, action: Action) -> tuple[Messages, bool]:
        """What the policy is shown next, and whether the episode is over."""
        if self._config.text_tool is not None:
            return await self._text_answered(self._config.text_tool, action)
        if not action.calls:
            ends = self._config.final_message == "ends"
            return ((), True) if ends else (({"role": "user", "content": CALL},), False)
        clock = asyncio.get_running_loop().time
        until, ended = clock() + self._config.tool_deadline_s, False
        messages: list[Mapping[str, Any]] = []
        for number, call in enumerate(action.calls):
            if ended or number >= self._config.calls_of_turn or clock() >= until:
                why = "the episode is over" if ended else "too many calls in one reply"
                answer = ToolAnswer(f"error: {why}; this one was not run", False)
            else:
                answer = await self._toolbox.call(call.name, call.arguments)
                ended = answer.good and call.name in self._config.end_tools
            self._count(answer)
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "name": call.name,
                    "content": answer.content,
                }
            )
        return tuple(messages), ended

    async def _text_answered(self, tool: str, action: Action) -> tuple[Messages, bool]:
        answer = await self._toolbox.call(tool, {self._argument: action.text.strip()})
        self._count(answer)
        ended = answer.good and tool in self._config.end_tools
        first, *rest = said(action, "")
        return ({**first, "content": answer.content}, *rest), ended

    def _count(self, answer: ToolAnswer) -> None:
        self._counts["tool_calls" if answer.good else "tool_errors"] += 1

    async def _hidden_call(self, connection: McpConnection, name: str, reply: str) -> Content:
        taken = connection.tool(name).parameters.get("properties", {})
        known = {"seed": self._seed, "reply": reply, **self._task.data.get("arguments", {})}
        given = {key: known[key] for key in taken if key in known}
        try:
            return await connection.whole_result(name, given)
        except ToolError as error:
            reason = f"the server's tool {name!r} gave no result: {error!s:.500}"
            raise EnvironmentFailed("tool_server", reason) from error

    async def _scored(self, connection: McpConnection, reply: str) -> float:
        """The score; other numbers are metrics."""
        name = self._config.score
        assert name is not None, "scored"
        text = text_of(await self._hidden_call(connection, name, reply))
        found = _numbers(text)
        score = next((found.pop(key) for key in _SCORES if key in found), None)
        if score is None:
            raise EnvironmentFailed(
                "tool_server",
                f"the server's tool {name!r} gave {text!r:.200}; expected a finite number, or an object with one as 'score'",
            )
        self._counts.update(found)
        return score


def _only_argument(connection: McpConnection, name: str | None) -> str:
    """The argument of the tool that is called with the text of each reply."""
    if name is None:
        return ""
    schema = connection.tool(name).parameters
    arguments = list(schema.get("required") or schema.get("properties", {}))
    if len(arguments) != 1:
        raise PreflightError(
            f"{WHO}: text_tool is {name!r}, which needs {len(arguments)} arguments; expected a tool with one string"
        )
    return str(arguments[0])


def _opening(task: Prompt, may_lack: bool) -> Messages:
    """The messages of a prompt; :class:`PromptError` if it has none and needs some, or has other data."""
    content = task.data.get("prompt")
    if not isinstance(task.data.get("arguments", {}), Mapping):
        raise PromptError(
            f"prompt {task.id!r}: 'arguments' is {task.data['arguments']!r:.80}; expected an object, whose values are given "
            "to the tools that reset and score the world"
        )
    if isinstance(content, str) and content:
        return ({"role": "user", "content": content},)
    if isinstance(content, list) and content and all(map(_is_message, content)):
        return tuple(content)
    if content is None and may_lack:
        return ()
    raise PromptError(
        f"prompt {task.id!r}: {WHO} expects 'prompt' to be text or a list of messages, got {content!r:.80}"
    )


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str | list)
    )


def _numbers(text: str) -> dict[str, float]:
    """The finite numbers of a result: a JSON object's by their names, or a single one as ``score``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    fields = value if isinstance(value, dict) else {"score": value}
    return {
        key: float(each)
        for key, each in fields.items()
        if isinstance(each, int | float) and abs(each) < 1e300 and math.isfinite(each)
    }
