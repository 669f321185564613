"""What the template of a model can say, found by rendering: tools, their results, reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from astraflow_core.errors import UserError
from astraflow_gateway.capture.graph import Tokens
from astraflow_gateway.chat import python_calls
from astraflow_gateway.chat.messages import ChatModel, Message, tool_call
from astraflow_gateway.chat.quoting import Quoting
from astraflow_gateway.requests import NotEncodable

Content = str | list[dict[str, Any]]
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_description",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "a key"}},
            "required": ["probe_key"],
        },
    },
}
_USER: Message = {"role": "user", "content": "probe_question"}
_CALLS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [tool_call("probe0000", "probe_tool", '{"probe_key": "probe_value"}')],
}
_RESULT: Message = {
    "role": "tool",
    "content": "probe_result",
    "name": "probe_tool",
    "tool_call_id": "probe0000",
}
_THINKS: Message = {
    "role": "assistant",
    "content": "probe_answer",
    "reasoning_content": "probe_thought",
}

_OFFER = """You may call these functions:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and its arguments:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


def told_of_tools(native: bool) -> str:
    """A text that describes a tool to a model: ``native``, as the template gets it, else in plain text. A tokenizer that
    cannot encode it knows no tools."""
    tool = json.dumps(_TOOL)
    return tool if native else _OFFER.format(tools=tool)


class ChatFormat:
    """How a policy's template is to be used. ``tool_style`` is the form in which its model writes tool calls (a key
    of :data:`~astraflow_gateway.chat.replies.STYLES`); with ``native_tools`` false the template has
    no support for tools, and they are described in plain text, in the form of Hermes. ``reasons``: the template keeps
    reasoning apart. With ``plain_calls`` tools are described in plain text whatever the template supports, and called as
    :mod:`astraflow_gateway.chat.python_calls` says."""

    def __init__(self, engine: ChatModel, plain_calls: bool = False) -> None:
        self._engine = engine
        self.tool_style, self.native_tools = (
            (python_calls.STYLE, False) if plain_calls else self._probe_tools()
        )
        self.reasons = self._probe_reasoning()
        self._quoting = Quoting(engine.tokenizer)
        decode = engine.tokenizer.decode
        ends = {
            token: decode(np.array([token], np.int32), skip_special=False)
            for token in engine.tokenizer.eos_token_ids
        }
        self.ends = {token: text for token, text in ends.items() if text}

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        """The text of ``messages``; :class:`UserError` if the template refuses them."""
        if self.tool_style == "mistral":
            messages = [_short_ids(message) for message in messages]
        elif self.tool_style == "kimi":
            messages = _named_ids(messages)
        if self.native_tools:
            return self._engine.chat_text(messages, add_generation_prompt, tools)
        plain = _in_plain_text(messages, tools, self.tool_style)
        return self._engine.chat_text(plain, add_generation_prompt)

    def encode(
        self,
        text: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        start: int = 0,
    ) -> Tokens:
        """The token ids of ``text[start:]``, where ``text`` is that of ``messages`` with a generation prompt. What the
        messages quote becomes no special token. :class:`NotEncodable` if the tokenizer refuses them."""
        try:
            return self._quoting.encode(
                text,
                start,
                messages,
                tools,
                lambda said, offered: self.text([dict(each) for each in said], offered, True),
            )
        except NotEncodable as error:
            if tools and not self._can_be_told_of_tools:
                advice = "this model does not support tools; send none"
                raise NotEncodable(error.cause, advice, "tools") from error
            raise

    @cached_property
    def _can_be_told_of_tools(self) -> bool:
        try:
            self._engine.tokenizer.encode(told_of_tools(self.native_tools))
        except UserError:
            return False
        return True

    def _probe_tools(self) -> tuple[str, bool]:
        try:
            text = self._engine.chat_text([_USER, _CALLS, _RESULT], False, [_TOOL])
        except UserError:
            return "hermes", False
        told = ("probe_description", "probe_value", "probe_result")
        if not all(part in text for part in told):
            return "hermes", False
        if "[TOOL_CALLS]" in text:
            return "mistral", True
        if "<|tool_call_begin|>" in text:
            return "kimi", True
        if "<tool_call>" in text:
            return "hermes", True
        if '"parameters"' in text[text.rindex("probe_question") :]:
            return "llama", True
        return "hermes", False

    def _probe_reasoning(self) -> bool:
        try:
            tools = [_TOOL] if self.native_tools else []
            return "probe_thought" in self._engine.chat_text([_USER, _THINKS], False, tools)
        except UserError:
            return False


def _short_ids(message: Message) -> Message:
    """Mistral's templates refuse ids of tool calls that are not nine letters and digits."""
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if "tool_calls" in message:
        calls = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    return message


def _short_id(id: str) -> str:
    if len(id) == 9 and id.isascii() and id.isalnum():
        return id
    return xxhash.xxh3_64_hexdigest(id.encode("utf-8", "replace"))[:9]


def _named_ids(messages: Sequence[Message]) -> list[Message]:
    """Kimi's model writes the ids of its calls itself, from the tool and the place, and results are shown under them."""
    names: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        if "tool_calls" in message:
            for place, call in enumerate(message["tool_calls"]):
                names[call["id"]] = f"functions.{call['function']['name']}:{place}"
        if "tool_call_id" in message:
            id = message["tool_call_id"]
            message = {**message, "tool_call_id": names.get(id, id)}
        found.append(message)
    return found


def _in_plain_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], style: str
) -> list[Message]:
    """The same messages without tool calls and roles of tools; the first message describes the tools."""
    write = _python_plain if style == python_calls.STYLE else _plain
    plain = [write(message) for message in messages]
    if tools and plain:
        offer = python_calls.offer(tools) if style == python_calls.STYLE else _offer(tools)
        first = plain[0]
        if style == python_calls.STYLE and first["role"] != "system":
            return [{"role": "system", "content": offer}, *plain]
        before, after = ("", offer) if first["role"] == "system" else (offer, "")
        between = "\n\n" if first["content"] else ""
        framed = _framed(before and before + between, first["content"], after and between + after)
        plain[0] = {**first, "content": framed}
    return plain


def _offer(tools: Sequence[Mapping[str, Any]]) -> str:
    return _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def _plain(message: Message) -> Message:
    if message["role"] == "tool":
        content = _framed("<tool_response>\n", message["content"], "\n</tool_response>")
        return {"role": "user", "content": content}
    blocks = [
        json.dumps(
            {each: call["function"][each] for each in ("name", "arguments")}, ensure_ascii=False
        )
        for call in message.get("tool_calls", ())
    ]
    return _with_calls(message, [f"<tool_call>\n{block}\n</tool_call>" for block in blocks])


def _python_plain(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": _framed("Result: ", message["content"], "")}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return _with_calls(
        message, [python_calls.written(each["name"], each["arguments"]) for each in calls]
    )


def _framed(before: str, content: Content, after: str) -> Content:
    """``content`` between two texts."""
    if isinstance(content, str):
        return before + content + after
    texts = [{"type": "text", "text": text} if text else None for text in (before, after)]
    return [part for part in (texts[0], *content, texts[1]) if part is not None]


def _with_calls(message: Message, calls: Sequence[str]) -> Message:
    content = message["content"]
    if isinstance(content, str):
        content = "\n".join(part for part in (content, *calls) if part)
    plain: Message = {key: message[key] for key in ("role", "reasoning_content") if key in message}
    return {**plain, "content": content}
