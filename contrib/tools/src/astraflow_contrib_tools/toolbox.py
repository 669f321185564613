"""The tools that a policy is offered in an episode, and how a call of one is answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow_contrib_tools.content import Content, ShownImages
from astraflow_contrib_tools.results import ToolError
from astraflow_core.errors import PreflightError
from astraflow_gateway.chat.messages import ToolCall

LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Tool:
    """``call(arguments)`` gives the result, in time and not too long; :class:`ToolError` if there is none. ``origin`` says whose tool
    it is."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    origin: str
    call: Callable[[Mapping[str, Any]], Awaitable[Content]]

    @property
    def offer(self) -> dict[str, Any]:
        """As described to a model."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model is shown for a call; ``good`` is false for an error."""

    content: Content
    good: bool


class Toolbox:
    """Tools by name; of their results those images are shown that ``shown`` allows."""

    def __init__(self, tools: Iterable[Tool], shown: ShownImages) -> None:
        self._shown = shown
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if other := self._tools.get(tool.name):
                raise PreflightError(
                    f"workflow 'tools': {other.origin} and {tool.origin} both have a tool {tool.name!r}; rename one, or "
                    "say in [workflow.mcp.NAME] tools which are offered"
                )
            self._tools[tool.name] = _checked(tool)

    @property
    def offers(self) -> list[dict[str, Any]]:
        """All tools, as described to a model."""
        return [tool.offer for tool in self._tools.values()]

    async def answer(self, call: ToolCall) -> ToolAnswer:
        """What the model is shown for ``call``."""
        return await self.call(call.name, call.arguments or "{}")

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> ToolAnswer:
        """What the model is shown for a call; ``arguments`` are an object, or the text that should be one."""
        try:
            return ToolAnswer(self._shown.of(await self._called(name, arguments)), True)
        except ToolError as error:
            return ToolAnswer(f"error: {error}", False)

    async def _called(self, name: str, given: str | Mapping[str, Any]) -> Content:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name!r:.80}; there are {', '.join(self._tools)}")
        return await tool.call(_object(given))


def _object(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, str):
        return given
    try:
        arguments = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments are {given!r:.80}; expected a JSON object")
    return arguments


def _checked(tool: Tool) -> Tool:
    schema = tool.parameters
    fits = isinstance(schema.get("properties", {}), Mapping) and schema.get("type") == "object"
    if not fits:
        raise PreflightError(
            f"workflow 'tools': the arguments of tool {tool.name!r} of {tool.origin} have the schema {dict(schema)!r:.200}; "
            "expected one of type 'object', whose properties are the arguments"
        )
    name = tool.name
    if not (
        0 < len(name) <= LONGEST_NAME and name.replace("-", "_").replace(".", "_").isidentifier()
    ):
        raise PreflightError(
            f"workflow 'tools': {tool.origin} has a tool {name!r:.80}; a name has at most {LONGEST_NAME} letters, "
            "digits and underscores"
        )
    return tool
