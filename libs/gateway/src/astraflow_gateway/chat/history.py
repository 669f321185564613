"""The conversations of an episode: which recorded call a request continues, and the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astraflow_core.errors import UserError
from astraflow_core.types import Images
from astraflow_gateway.capture.graph import Call, Tokens
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.chat.messages import ChatModel, Message, ModelReply, digests
from astraflow_wire.images.parts import split_images

_OTHER = "probe_of_another_message"

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A recorded reply: its message and the call that sampled it. ``start`` is the forced beginning
    of the reply; ``cut`` says that a stop sequence cut what the agent got."""

    message: Message
    call: Call
    start: str
    cut: bool


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The prompt of a request, int32 ``[P]``. ``outcome`` is "continued" if it begins with a recorded call's ids,
    else why it is a root: "first" (nothing was said before), "history" (the agent sent a reply that no call made, or
    other tools), "template" (the template writes an earlier turn in another way now), "end" (the reply did not end
    as the template ends one), "stop" (a stop sequence cut the reply) or "ambiguous" (several calls made it).
    ``parent`` is the call whose ids it begins with.

    ``files``: those of images that come after the parent, each of which has one placeholder here; once there are as many as
    the model reads, ``images`` has all of the prompt in their places."""

    tokens: Tokens
    outcome: str
    parent: Call | None = None
    files: tuple[bytes, ...] = ()
    images: Images = ()


@dataclass
class History:
    """What was said to one policy in one episode."""

    engine: ChatModel
    format: ChatFormat
    _turns: dict[int, list[RecordedTurn]] = field(default_factory=dict)

    def plan(self, messages: Sequence[Message], tools: Tools) -> PromptPlan:
        """The prompt for the reply to ``messages``; :class:`astraflow_core.errors.UserError` if the template refuses
        them. An earlier reply is taken as it was recorded: with the reasoning that the agent left out."""
        chain = digests(messages, tools)
        known = [self._turns.get(digest, []) for digest in chain[1:]]
        said = [
            turns[0].message if len(turns) == 1 else message
            for message, turns in zip(messages, known, strict=True)
        ]
        try:
            said, files = split_images(said)
        except ValueError as error:
            raise UserError(str(error)) from error
        last = max((at for at, each in enumerate(said) if each["role"] == "assistant"), default=-1)
        text = self.format.text(said, tools, True)
        turns = known[last] if last >= 0 else []
        parent, rest = None, 0
        if last < 0:
            outcome = "first"
        elif len(turns) != 1:
            outcome = "ambiguous" if turns else "history"
        else:
            outcome, rest = self._continued(turns[0], said, last, tools, text)
            parent = turns[0].call if outcome == "continued" else None
        tokens = self.format.encode(text, said, tools, rest)
        if parent is not None:
            tokens = np.concatenate([parent.tokens, tokens])
            files = files[len(parent.images) :]
        return PromptPlan(tokens, outcome, parent, tuple(files))

    def record(
        self,
        messages: Sequence[Message],
        tools: Tools,
        reply: ModelReply,
        call: Call,
        start: str = "",
        cut: bool = False,
    ) -> None:
        """``reply``, which ``call`` sampled, followed ``messages``."""
        digest = digests([*messages, reply.message], tools)[-1]
        self._turns.setdefault(digest, []).append(RecordedTurn(reply.message, call, start, cut))

    def _continued(
        self, turn: RecordedTurn, said: Sequence[Message], at: int, tools: Tools, text: str
    ) -> tuple[str, int]:
        """The outcome; and the position in ``text`` after the turn's sampled tokens, if they are continued."""
        if turn.cut:
            return "stop", 0
        asked = self.format.text(said[:at], tools, True)
        if not text.startswith(asked):
            return "template", 0
        return self._rest(turn, said[: at + 2], tools, asked, text)

    def _rest(
        self, turn: RecordedTurn, said: Sequence[Message], tools: Tools, asked: str, text: str
    ) -> tuple[str, int]:
        """``said`` ends with the message after the turn, ``asked`` is the text before it."""
        sampled = turn.call.result.tokens
        whole = turn.start + self.engine.tokenizer.decode(sampled, skip_special=False)
        end = self.format.ends.get(int(sampled[-1]), "") if len(sampled) else ""
        if end and text.startswith(whole, len(asked)):
            return "continued", len(asked) + len(whole)
        # The template writes the turn in another way, such as the JSON of a tool call. If it says the same, the sampled
        # tokens stand for it; where it ends is seen with another message after it.
        other = self.format.text([*said[:-1], {**said[-1], "content": _OTHER}], tools, False)
        common = text[: _common(text, other)]
        ends = [common.rfind(each, len(asked)) for each in self.format.ends.values()]
        if (place := max(ends, default=-1)) < 0:
            return "end", 0
        if not all(part in text[len(asked) : place] for part in _parts(turn.message)):
            return "template", 0
        if not text.startswith(end, place):
            return "end", 0
        return "continued", place + len(end)


def _parts(message: Message) -> list[str]:
    """What a template has to write of a reply, in whatever form."""
    return [message["content"].strip(), message.get("reasoning_content", "").strip()]


def _common(one: str, other: str) -> int:
    """The length of the prefix that both have."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
