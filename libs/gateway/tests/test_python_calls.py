"""Tool calls in plain text, as Python writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chat_templates import TEMPLATES

from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.chat.messages import ModelReply, ToolCall
from astraflow_gateway.chat.python_calls import offer, python_calls, written
from astraflow_testing.scripted_policies import ScriptedPolicies

CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluate arithmetic.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"expression": "6 * 7"},
        {},
        {"a": -1, "b": 2.5, "c": None, "d": True, "e": ["x", {"y": 'a "quoted" ü\n'}]},
    ],
)
def test_a_call_that_is_written_is_read(arguments: dict[str, Any]) -> None:
    text = f"so:\n{written('my-tool.add', arguments)}\n"
    rest, ((name, found),) = python_calls(text)
    assert (rest, name, json.loads(found)) == ("so:", "my-tool.add", arguments)


@pytest.mark.parametrize(
    "text",
    [
        "calculate('6 * 7')",  # which argument is it?
        "calculate(expression=open('x'))",
        "calculate(**{'a': 1})",
        "calculate(expression='6 * 7'",
        "see calculate(expression='6 * 7')",
        "calculate(a=1)(b=2)",
        "calculate(a=1, a=2)",
        "calculate(a=1e999)",
        "calculate(a=b'x')",
        "calculate(a=\0)",
        "calculate(a=" + "[" * 2000 + ")",
        "calculate(a='" + "x" * 5000 + "')",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert python_calls(text) == (text, [])


def test_several_calls_stand_on_lines_of_their_own() -> None:
    rest, calls = python_calls("first\n add(a=1) \nadd(a=2)\nthen")
    assert calls == [("add", '{"a": 1}'), ("add", '{"a": 2}')]
    assert "first" in rest and rest.endswith("then") and "add" not in rest


def test_a_template_that_knows_tools_writes_none_of_its_own_form() -> None:
    (engine,) = ScriptedPolicies(["p"], tokenizer=TEMPLATES[0].tokenizer()).engines().values()
    form = ChatFormat(engine, plain_calls=True)
    reply = ModelReply("", "", (ToolCall("1", "calculate", '{"expression": "6 * 7"}'),))
    result = {"role": "tool", "content": "42", "tool_call_id": "1", "name": "calculate"}
    messages = [{"role": "user", "content": "6 * 7?"}, reply.message, result]
    text = form.text(messages, [CALCULATE], True)
    assert "tool_call" not in text and '"type"' not in text
    assert offer([CALCULATE]) in text
    assert "calculate(expression: string)  # Evaluate arithmetic." in text
    assert (
        text.index("6 * 7?")
        < text.index('calculate(expression="6 * 7")')
        < text.index("Result: 42")
    )
