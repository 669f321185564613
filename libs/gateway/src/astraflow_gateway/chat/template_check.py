"""How the template of a model renders a conversation: does each turn continue the token ids of the previous one?"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from astraflow_core.errors import UserError
from astraflow_core.types import GenerateResult
from astraflow_gateway.capture.graph import Call, Tokens
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.chat.history import History, Tools
from astraflow_gateway.chat.messages import Message
from astraflow_gateway.chat.replies import forced_start, parse_reply

CONTINUED = "continued"


class RenderText(Protocol):
    """The chat template: messages, whether the reply comes next, tools → text. :class:`UserError` if it refuses."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Tools = (),
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class ConversationCheck:
    """What the gateway does with one fixed conversation.

    ``outcomes``: of each request after the first, a key of :class:`~astraflow_gateway.chat.history.PromptPlan`.
    ``append_only``: each prompt begins with the exact text of the previous one and of its reply. The gateway
    also continues where a template only writes a tool call or white space in another way. ``refused`` is why the
    template refuses the conversation, else empty.
    """

    name: str
    outcomes: tuple[str, ...] = ()
    append_only: bool = False
    refused: str = ""

    @property
    def continues(self) -> bool:
        """Whether all of it is one sequence."""
        return not self.refused and set(self.outcomes) == {CONTINUED}

    @property
    def counts(self) -> Counter[str]:
        """Number of requests by outcome."""
        return Counter(self.outcomes)


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """The conversations, and what :class:`~astraflow_gateway.chat.format.ChatFormat` found out."""

    tool_style: str
    native_tools: bool
    reasons: bool
    conversations: tuple[ConversationCheck, ...]


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the model says in a turn; the agent answers a call by its result, and else asks again."""

    thinks: bool = False
    calls: bool = False


_CONVERSATIONS = {
    "turns": (_Turn(), _Turn()),
    "tools": (_Turn(calls=True), _Turn(), _Turn()),
    "reasoning": (_Turn(thinks=True), _Turn(thinks=True)),
    "tools and reasoning": (_Turn(thinks=True, calls=True), _Turn(thinks=True)),
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
_ARGUMENTS = '{"a": 1, "b": 22}'
_CALL_ENDS = {
    "hermes": "}\n</tool_call>",
    "llama": "}",
    "mistral": "}]",
    "kimi": "<|tool_call_end|><|tool_calls_section_end|>",
}


def check_template(render: RenderText, ends: Sequence[str]) -> TemplateCheck:
    """Play the fixed conversations by the template ``render``, whose model ends a reply with one of ``ends``."""
    model = _Model(render, ends)
    form = ChatFormat(model)
    played = tuple(_played(name, turns, model, form) for name, turns in _CONVERSATIONS.items())
    return TemplateCheck(form.tool_style, form.native_tools, form.reasons, played)


def _played(
    name: str, turns: Sequence[_Turn], model: _Model, form: ChatFormat
) -> ConversationCheck:
    history = History(model, form)
    tools = [_TOOL] if any(turn.calls for turn in turns) else []
    messages: list[Message] = [{"role": "user", "content": "What is 1 + 22?"}]
    ids = (f"call{number:05d}" for number in itertools.count())
    outcomes: list[str] = []
    append_only, before = True, ""
    try:
        for turn in turns:
            plan, text = history.plan(messages, tools), form.text(messages, tools, True)
            outcomes.append(plan.outcome)
            append_only &= text.startswith(before)
            sampled = _sampled_text(turn, form.tool_style, text, model.tokenizer.end)
            before = text + sampled
            call = _call(plan.tokens, model.tokenizer.encode(sampled))
            style = form.tool_style if tools else ""
            spoken = sampled.removesuffix(model.tokenizer.end)
            reply = parse_reply(spoken, style, form.reasons, ids)
            history.record(messages, tools, reply, call)
            messages = [*messages, *_after(reply.message, f"And {len(messages)} + 22?")]
        outcomes.append(history.plan(messages, tools).outcome)
        append_only &= form.text(messages, tools, True).startswith(before)
    except UserError as error:
        return ConversationCheck(name, refused=str(error))
    return ConversationCheck(name, tuple(outcomes[1:]), append_only)


def _sampled_text(turn: _Turn, style: str, prompt: str, end: str) -> str:
    """What the model samples after the text ``prompt``; one whose prompt begins to think cannot but think."""
    begun = prompt.rstrip().endswith("<think>")
    call = forced_start(style, "add") + _ARGUMENTS + _CALL_ENDS[style]
    said = call if turn.calls else "It is 23."
    if turn.thinks or begun:
        said = f"One more than 22.\n</think>\n\n{said}"
        said = said if begun else f"<think>\n{said}"
    return said + end


def _after(reply: Message, question: str) -> Iterator[Message]:
    """The reply as most agents send it back, without its reasoning, and what comes after it. Some templates know the
    last question by its text, so that no two are alike."""
    yield {key: value for key, value in reply.items() if key != "reasoning_content"}
    for call in reply.get("tool_calls", ()):
        yield {"role": "tool", "content": "23", "name": "add", "tool_call_id": call["id"]}
    if "tool_calls" not in reply:
        yield {"role": "user", "content": question}


def _call(prompt: Tokens, sampled: Tokens) -> Call:
    nothing = np.zeros(len(sampled), np.float32)
    versions = np.zeros(len(sampled), np.int32)
    return Call("", prompt, GenerateResult("", sampled, nothing, versions, "stop"))


class _Model:
    """The template, and a tokenizer of bytes: what happens to texts does not depend on the tokenizer of a model."""

    def __init__(self, render: RenderText, ends: Sequence[str]) -> None:
        self.chat_text, self.tokenizer = render, _Bytes(ends)


class _Bytes:
    """UTF-8, and one token for each text that ends a reply."""

    special_texts: tuple[str, ...] = ()
    _FIRST = 256

    def __init__(self, ends: Sequence[str]) -> None:
        self.end = ends[0] if ends else ""
        self._ends = dict(enumerate(ends, self._FIRST))
        self.eos_token_ids = tuple(self._ends)

    @property
    def fingerprint(self) -> str:
        """Ids mean the same where the same texts end a reply."""
        return repr(("bytes", *self._ends.values()))

    def encode(self, text: str) -> Tokens:
        """Only the end of ``text`` may be the token that ends a reply."""
        for token, end in self._ends.items():
            if end and text.endswith(end):
                return np.array([*text.removesuffix(end).encode(), token], np.int32)
        return np.array([*text.encode()], np.int32)

    def decode(self, tokens: Tokens, skip_special: bool = True) -> str:
        """The text."""
        ids = tokens.tolist()
        last = ids.pop() if ids and ids[-1] >= self._FIRST else None
        end = "" if last is None or skip_special else self._ends[last]
        return bytes(ids).decode() + end
