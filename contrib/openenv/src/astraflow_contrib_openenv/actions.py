"""Replies as actions of an OpenEnv environment, and the tools that make them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from astraflow_contrib_openenv.config import OpenEnvConfig
from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Action
from astraflow_environments.actions import first_tagged

ACT = "act"
_INTEGER = re.compile(r"-?\d{1,18}(?!\d)")
Json = dict[str, Any]
Tools = tuple[Mapping[str, Any], ...]


def action_of(config: OpenEnvConfig, tools: Tools, action: Action) -> Json:
    """The data of a step; :class:`ValueError` with the reason for the model if the reply is not an action."""
    if config.actions in ("tools", "mcp"):
        return _called(config, tools, action)
    tagged = first_tagged(action.text, "action")
    text = action.text.strip() if tagged is None else tagged[1]
    if config.actions == "json":
        return {**config.action, **_object(text)}
    value: str | int = text
    if config.action_type == "integer":
        numbers = _INTEGER.findall(text)
        if not numbers:
            raise ValueError(f"{text!r:.80} has no number; reply with the number of an action.")
        value = int(numbers[-1])
    return {**config.action, config.action_field: value}


def tool_of_schema(schema: Any) -> Mapping[str, Any]:
    """The tool ``act`` with the fields of an action; its metadata are not the model's."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise EnvironmentFailed("malformed", f"has no schema of actions, but {schema!r:.80}")
    fields = {name: part for name, part in schema["properties"].items() if name != "metadata"}
    parameters = {**schema, "type": "object", "properties": fields}
    parameters.pop("title", None)
    description = parameters.pop("description", None)
    function = {"name": ACT, "description": _first_line(description), "parameters": parameters}
    return {"type": "function", "function": function}


def tools_of_mcp(listed: Any) -> Tools:
    """The tools that ``tools/list`` gave."""
    found = listed.get("tools") if isinstance(listed, dict) else None
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and "name" in one for one in found
    ):
        raise EnvironmentFailed("malformed", f"listed no MCP tools, but {listed!r:.80}")
    return tuple(
        {
            "type": "function",
            "function": {
                "name": str(one["name"]),
                "description": str(one.get("description") or ""),
                "parameters": one.get("input_schema")
                or one.get("inputSchema")
                or {"type": "object"},
            },
        }
        for one in found
    )


def _called(config: OpenEnvConfig, tools: Tools, action: Action) -> Json:
    names = [tool["function"]["name"] for tool in tools]
    if not action.calls:
        raise ValueError(f"Call a tool: {', '.join(names)}.")
    call = action.calls[0]
    if call.name not in names:
        raise ValueError(f"There is no tool {call.name!r:.80}; call {', '.join(names)}.")
    if not isinstance(call.arguments, dict):
        raise ValueError(f"The arguments of {call.name} are not a JSON object.")
    if config.actions == "tools":
        return {**config.action, **call.arguments}
    return {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}


def _object(text: str) -> Json:
    begin = text.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(text[begin:] if begin >= 0 else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r:.80} has no JSON object: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{text!r:.80} is not a JSON object")
    return found


def _first_line(text: Any) -> str:
    return next(iter(text.strip().splitlines()), "") if isinstance(text, str) else "Act once."
