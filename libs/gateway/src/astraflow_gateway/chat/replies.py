"""What a model said, taken apart into reasoning, content and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from astraflow_core.protocols.workflow import Tokenizer
from astraflow_core.types import GenerateResult
from astraflow_gateway.chat import python_calls
from astraflow_gateway.chat.messages import ModelReply, ToolCall

Found = list[tuple[str, str]]
"""Names and arguments (JSON text) of tool calls."""

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_MISTRAL_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]")
_KIMI_SECTION, _KIMI_BEGIN, _KIMI_ARGUMENTS = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
)
_KIMI_CALL = re.compile(
    rf"{re.escape(_KIMI_BEGIN)}\s*(?:functions\.)?([\w.-]+):\d+\s*{re.escape(_KIMI_ARGUMENTS)}(.*?)"
    r"(?:<\|tool_call_end\|>|\Z)",
    re.DOTALL,
)
_THOUGHT_END = "</think>"
_THOUGHT = re.compile(rf"\A\s*(?:<think>)?(.*?){_THOUGHT_END}\s*", re.DOTALL)


def hermes(text: str) -> tuple[str, Found]:
    """``<tool_call>{"name": …, "arguments": …}</tool_call>``, as Hermes and Qwen write it. A block that is not such
    an object stays text."""
    found: Found = []

    def taken(match: re.Match[str]) -> str:
        calls = _calls_in(match[1], "arguments")
        found.extend(calls)
        return "" if calls else match[0]

    rest = _HERMES.sub(taken, text)
    return (rest.strip() if found else text), found


def llama(text: str) -> tuple[str, Found]:
    """``{"name": …, "parameters": …}``, the whole reply, as Llama 3 writes it; its template takes one at a time."""
    whole = text.strip().removeprefix("<|python_tag|>")
    calls = _calls_in(whole, "parameters")[:1] if whole.startswith("{") else []
    return ("", calls) if calls else (text, [])


def mistral(text: str) -> tuple[str, Found]:
    """``[TOOL_CALLS] [{"name": …, "arguments": …}]``, or ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""
    before, *blocks = text.split("[TOOL_CALLS]")
    found: Found = []
    for block in blocks:
        named = _MISTRAL_NAMED.match(block)
        if named is None:
            found += _calls_in(block, "arguments")
        elif isinstance(arguments := _first_json(block[named.end() :]), dict):
            found.append((named[1], json.dumps(arguments)))
    return (before.strip(), found) if found else (text, [])


def kimi(text: str) -> tuple[str, Found]:
    """``<|tool_call_begin|>functions.NAME:PLACE<|tool_call_argument_begin|>{…}<|tool_call_end|>`` within a section, as
    Kimi K2 writes it."""
    found: Found = []
    for name, block in _KIMI_CALL.findall(text):
        if isinstance(arguments := _first_json(block), dict):
            found.append((name, json.dumps(arguments)))
    return (text.partition(_KIMI_SECTION)[0].strip(), found) if found else (text, [])


STYLES: dict[str, Callable[[str], tuple[str, Found]]] = {
    "hermes": hermes,
    "llama": llama,
    "mistral": mistral,
    "kimi": kimi,
    python_calls.STYLE: python_calls.python_calls,
}


def parse_reply(text: str, style: str, reasons: bool, ids: Iterator[str]) -> ModelReply:
    """``text`` without its end token. ``style`` is the form of tool calls, "" if none were offered; ``reasons``
    says that what stands before ``</think>`` is reasoning."""
    reasoning = ""
    if reasons and (thought := _THOUGHT.match(text)):
        reasoning, text = thought[1].strip(), text[thought.end() :]
    if not style:
        return ModelReply(text, reasoning)
    content, found = STYLES[style](text)
    return ModelReply(content, reasoning, tuple(ToolCall(next(ids), *each) for each in found))


def reasoning_tokens(reply: ModelReply, result: GenerateResult, tokenizer: Tokenizer) -> int:
    """How many of the sampled tokens are reasoning, the end of it included."""
    if not reply.reasoning:
        return 0
    low, high = 1, len(result.tokens)
    while low < high:
        middle = (low + high) // 2
        if _THOUGHT_END in tokenizer.decode(result.tokens[:middle], skip_special=False):
            high = middle
        else:
            low = middle + 1
    return low


def _calls_in(text: str, key: str) -> Found:
    """The calls in JSON text: an object, several one after the other, or a list; nothing if one is no call."""
    values = _json_values(text)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    found = []
    for value in values:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return []
        arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
        if not isinstance(arguments, dict):
            return []
        found.append((value["name"], json.dumps(arguments)))
    return found


def _json_values(text: str) -> list[Any]:
    decoder, values, at = json.JSONDecoder(), [], 0
    text = text.strip()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return []
        values.append(value)
        while at < len(text) and (text[at].isspace() or text[at] == ";"):
            at += 1
    return values


def _first_json(text: str) -> Any:
    text = text.strip()
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except ValueError:
        return None


def forced_start(style: str, name: str) -> str:
    """The beginning of a call of the tool ``name``, or of any if it is empty; a call in Python of any has none."""
    if style == "kimi":
        call = f"{_KIMI_SECTION}{_KIMI_BEGIN}functions."
        return f"{call}{name}:0{_KIMI_ARGUMENTS}" if name else call
    if style == python_calls.STYLE:
        return f"{name}(" if name else ""
    key = "parameters" if style == "llama" else "arguments"
    call = f'{{"name": {json.dumps(name)}, "{key}": ' if name else '{"name": "'
    return {"hermes": "<tool_call>\n", "mistral": "[TOOL_CALLS] [", "llama": ""}[style] + call
