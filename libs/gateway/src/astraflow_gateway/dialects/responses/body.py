"""The body of a request for a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from astraflow_gateway.chat.messages import Message
from astraflow_gateway.dialects.bodies import (
    chosen_tool,
    most_tokens,
    refuse_top_logprobs,
    refuse_unavailable,
    sampling_of,
    tools_of,
)
from astraflow_gateway.dialects.dialect import Json
from astraflow_gateway.dialects.responses.items import items_of, messages_of
from astraflow_gateway.dialects.responses.tools import chat_tools
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest, ModelRequest

_UNAVAILABLE = ("background", "conversation", "prompt", "truncation")
_KEPT = "response"


class Asked(msgspec.Struct, kw_only=True):
    """The fields that are read; an agent may send others."""

    input: str | list[dict[str, Any]]
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    text: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    truncation: Any = None
    top_logprobs: int | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text is to come with the log-probs of what was sampled."""
        return "message.output_text.logprobs" in (self.include or ())


@dataclass(frozen=True, slots=True)
class Kept:
    """A response that was not refused to be stored: its items, ``input`` and output, follow those of ``previous``."""

    response: Json
    input: Sequence[Json]
    previous: str


def kept_response(episode: Episode, id: str) -> Kept | None:
    """The stored response ``id`` of the episode."""
    found = episode.kept.get((_KEPT, id))
    return found if isinstance(found, Kept) else None


def keep_response(episode: Episode, response: Json, asked: Asked) -> None:
    """Store a response until its episode ends, unless the agent does not want that."""
    if asked.store is not False:
        previous = asked.previous_response_id or ""
        kept = Kept(response, items_of(asked.input), previous)
        episode.kept[(_KEPT, response["id"])] = kept


def forget_response(episode: Episode, id: str) -> None:
    """Store it no longer."""
    episode.kept.pop((_KEPT, id), None)


def request_of(asked: Asked, episode: Episode) -> ModelRequest:
    """What is asked."""
    if asked.truncation == "disabled":
        asked.truncation = None
    refuse_unavailable(asked, _UNAVAILABLE)
    refuse_top_logprobs(asked.top_logprobs)
    if (wanted := (asked.text or {}).get("format")) and wanted != {"type": "text"}:
        raise BadRequest(
            "text.format is not available: the model's output is unconstrained", param="text.format"
        )
    tools = tools_of(chat_tools(asked.tools or []))
    return ModelRequest(
        model=asked.model,
        messages=_messages(asked, episode),
        tools=tools,
        tool_choice=_choice(asked.tool_choice, {each["function"]["name"] for each in tools}),
        max_tokens=most_tokens(asked.max_output_tokens, "max_output_tokens"),
        sampling=sampling_of(asked),
    )


def _messages(asked: Asked, episode: Episode) -> list[Message]:
    """Instructions, which hold for one response only, then all items since the first response."""
    items = [*_before(asked.previous_response_id, episode), *items_of(asked.input)]
    messages = list(messages_of(items))
    if not messages:
        raise BadRequest("input is empty; at least one item is needed", param="input")
    if asked.instructions:
        return [{"role": "system", "content": asked.instructions}, *messages]
    return messages


def _before(id: str | None, episode: Episode) -> list[Json]:
    chain: list[Kept] = []
    while id:
        if (kept := kept_response(episode, id)) is None:
            raise BadRequest(
                f"previous response with id {id!r:.80} not found; an episode keeps its own, unless store is false",
                kind="previous_response_not_found",
                param="previous_response_id",
            )
        chain.append(kept)
        id = kept.previous
    return [item for kept in reversed(chain) for item in (*kept.input, *kept.response["output"])]


def _choice(wanted: str | Mapping[str, Any] | None, names: set[str]) -> str:
    if isinstance(wanted, dict) and wanted.get("type") != "function":
        raise BadRequest(
            f"tool_choice.type is {wanted.get('type')!r:.80}; expected function",
            param="tool_choice",
        )
    return chosen_tool(wanted, names)
