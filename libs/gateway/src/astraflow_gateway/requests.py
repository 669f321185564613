"""What an agent asks for and what it is answered, whatever the dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from astraflow_core.errors import UserError
from astraflow_core.types import GenerateResult
from astraflow_gateway.capture.graph import Call, Tokens
from astraflow_gateway.chat.messages import Message, ModelReply

Finish = Literal["stop", "length", "tool_calls"]


class BadRequest(Exception):
    """A request that cannot be answered; each dialect says so in its own shape. ``kind`` is the code of OpenAI's
    errors, such as ``context_length_exceeded``; ``param`` names the field."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "invalid_request", param: str = ""
    ) -> None:
        self.message, self.status, self.kind, self.param = message, status, kind, param
        super().__init__(message)


class ContextExceeded(BadRequest):
    """A prompt of ``prompt`` tokens is more than a ``context`` has room for."""

    def __init__(self, prompt: int, context: int) -> None:
        self.prompt, self.context = prompt, context
        super().__init__(
            f"this model's maximum context length is {context} tokens, and the messages have {prompt}: shorten them",
            kind="context_length_exceeded",
            param="messages",
        )


class NotEncodable(UserError):
    """The model's tokenizer cannot encode what a request says; ``param`` is the field that says it."""

    def __init__(self, cause: UserError, advice: str = "", param: str = "messages") -> None:
        self.cause, self.param = cause, param
        advice = advice or "write the messages with characters that it has"
        super().__init__(f"{cause}: {advice}, or use a model whose tokenizer encodes any text")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request. ``prompt`` int32 ``[P]`` instead of ``messages`` if the agent gives token ids.

    ``tool_choice`` is "auto", "none", "required", or the name of a tool. ``sampling`` holds what the agent wants of
    temperature, top_p, top_k and min_p.
    """

    model: str
    messages: list[Message] = field(default_factory=list)
    prompt: Tokens | None = None
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    tool_choice: str = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a request; ``call`` is what sampled it, ``None`` where nothing was, since the budget was spent.
    ``stopped_by`` is the request's stop sequence that ended it, if one did."""

    reply: ModelReply
    finish: Finish
    call: Call | None = None
    stopped_by: str = ""

    @property
    def result(self) -> GenerateResult | None:
        """The sampled tokens."""
        return None if self.call is None else self.call.result


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answers to a request. ``id`` is its own among all episodes, ``created`` the time in seconds since 1970."""

    id: str
    created: int
    policy: str
    version: int
    prompt: Tokens
    choices: tuple[Choice, ...]

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(len(each.result.tokens) for each in self.choices if each.result is not None)
