"""Tools of a request for a response, single or in namespaces, as described to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astraflow_gateway.requests import BadRequest

Tool = Mapping[str, Any]


def full_name(namespace: Any, name: str) -> str:
    """How the model calls the tool ``name`` of a ``namespace``, which is "" or ``None`` for a single tool."""
    return f"{namespace}.{name}" if namespace else name


def split_names(tools: Sequence[Tool]) -> dict[str, tuple[str, str]]:
    """Full name → namespace and name, of the tools in namespaces."""
    return {
        full_name(tool["name"], inner["name"]): (tool["name"], inner["name"])
        for tool in tools
        if tool.get("type") == "namespace"
        for inner in tool["tools"]
    }


def chat_tools(tools: Sequence[Tool]) -> list[Tool]:
    """``tools`` in the form of chat completions."""
    return list(_chat_tools(tools))


def _chat_tools(tools: Sequence[Tool]) -> Iterator[Tool]:
    for at, tool in enumerate(tools):
        where = f"tools[{at}]"
        if tool.get("type") != "namespace":
            yield _chat_tool(tool, where)
            continue
        namespace, inside = tool.get("name"), tool.get("tools")
        named = isinstance(namespace, str) and namespace
        if not named or not isinstance(inside, list) or not all(map(_is_named, inside)):
            raise BadRequest(
                f"{where}: expected a namespace with a name, and tools that have names",
                param=where,
            )
        for place, each in enumerate(inside):
            inner = _chat_tool(each, f"{where}.tools[{place}]")["function"]
            yield {
                "type": "function",
                "function": {**inner, "name": full_name(namespace, inner["name"])},
            }


def _is_named(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str) and bool(tool["name"])


def _chat_tool(tool: Tool, where: str) -> Tool:
    if tool.get("type") != "function":
        raise BadRequest(
            f"{where} is of type {tool.get('type')!r:.80}, which runs on a server; expected a function: disable "
            "the tool in the agent",
            param=where,
        )
    function = {
        key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None
    }
    return {"type": "function", "function": function}
