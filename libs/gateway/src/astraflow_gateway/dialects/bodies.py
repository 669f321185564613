"""What the dialects' request bodies have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from astraflow_gateway.chat.messages import MOST_DEPTH, Message, too_deep
from astraflow_gateway.requests import BadRequest

T = TypeVar("T")

_SETTINGS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
}
"""Least and largest value of each setting of sampling."""
MOST_STOPS = 16
MOST_CHOICES = 64
_SURROGATES = re.compile(
    rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Escaped backslashes, pairs, and what is left of surrogates."""


class Names:
    """The names of the tools that earlier calls were of: most dialects give a result by the id of its call alone."""

    def __init__(self) -> None:
        self._by_id: dict[str, str] = {}

    def learn(self, message: Message) -> None:
        """Note the tool calls of an assistant's message."""
        for call in message.get("tool_calls", ()):
            self._by_id[call["id"]] = call["function"]["name"]

    def of(self, id: str | None) -> str:
        """The name of the tool that was called as ``id``; empty if no call had it."""
        return self._by_id.get(id or "", "")


def parsed(body: bytes, expected: type[T]) -> T:
    """``body`` as JSON; :class:`BadRequest` names what is wrong."""
    if not body.strip():
        raise BadRequest("the body is empty; expected a JSON object")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        what = f"{error.reason} at byte {error.start}"
        raise BadRequest(f"the body is not UTF-8 ({what}); encode the JSON as UTF-8") from error
    try:
        return msgspec.json.decode(body, type=expected)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$").removeprefix(".")
        raise BadRequest(f"{field}: {what}" if field else what, param=field) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if lone := _lone_surrogate(body):
            raise BadRequest(
                f"the body has {lone}, half of a character in UTF-16; send whole characters"
            ) from error
        raise BadRequest(f"the body is not JSON: {error}") from error


def _lone_surrogate(body: bytes) -> str:
    """The first escape of JSON that is half of a pair; empty if there is none."""
    for found in _SURROGATES.finditer(body):
        if found["lone"]:
            return found["lone"].decode()
    return ""


def tools_of(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Function tools in OpenAI's form; others are refused, because the gateway does not run tools."""
    found: list[Mapping[str, Any]] = []
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise BadRequest(
                f"tools[{at}] is of type {tool.get('type')!r:.80}; expected a function",
                param=f"tools[{at}]",
            )
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest(f"tools[{at}].function has no name", param=f"tools[{at}]")
        if not isinstance(function.get("parameters", {}), dict):
            raise BadRequest(
                f"tools[{at}]: its parameters (input_schema) are not a JSON schema object",
                param=f"tools[{at}]",
            )
        if too_deep(function):
            raise BadRequest(
                f"tools[{at}] is nested too deeply; expected at most {MOST_DEPTH} levels",
                param=f"tools[{at}]",
            )
        found.append({"type": "function", "function": function})
    return found


def chosen_tool(wanted: Any, names: set[str]) -> str:
    """The ``tool_choice`` of a request, from "auto", "none", "required" or an object that names one of ``names``."""
    if isinstance(wanted, dict):
        function = wanted.get("function", wanted)
        name = function.get("name") if isinstance(function, dict) else function
        if not isinstance(name, str) or name not in names:
            raise BadRequest(
                f"tool_choice names {name!r:.80}, which is not one of the tools",
                param="tool_choice",
            )
        return name
    if wanted not in (None, "auto", "none", "required"):
        raise BadRequest(
            f"tool_choice is {wanted!r:.80}; expected auto, none, required or a function",
            param="tool_choice",
        )
    if wanted == "required" and not names:
        raise BadRequest("tool_choice is required and there are no tools", param="tool_choice")
    return wanted or "auto"


def refuse_unavailable(asked: Any, names: Sequence[str]) -> None:
    """Refuse the fields ``names`` if they were sent: an agent that relies on one of these would take free text for what
    it wanted."""
    for name in names:
        value = getattr(asked, name)
        harmless = value in (None, False, {}, []) or (name == "best_of" and value == 1)
        if not harmless and value != {"type": "text"}:
            raise BadRequest(
                f"{name} is not available: the model's output is unconstrained", param=name
            )


def refuse_top_logprobs(count: int | None) -> None:
    """Refuse the log-probs of tokens that were not sampled: no engine's result has them."""
    if count:
        raise BadRequest(
            "top_logprobs is not available: only the log-prob of each sampled token is",
            param="top_logprobs",
        )


def sampling_of(asked: Any) -> dict[str, float]:
    """The settings of sampling that the agent sent."""
    found = {}
    for name, (least, largest) in _SETTINGS.items():
        value = getattr(asked, name)
        if value is None:
            continue
        if not least <= value <= largest:
            raise BadRequest(f"{name} is {value}; expected {least} to {largest}", param=name)
        found[name] = value
    return found


def stops_of(stop: str | Sequence[str] | None, field: str = "stop") -> tuple[str, ...]:
    """The stop sequences that the agent sent."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or not all(stops):
        raise BadRequest(
            f"{field} has {len(stops)} sequences; expected at most {MOST_STOPS}, none of them empty",
            param=field,
        )
    return stops


def most_tokens(max_tokens: int | None, field: str = "max_tokens") -> int | None:
    """How many tokens the agent wants at most."""
    if max_tokens is not None and max_tokens < 1:
        raise BadRequest(f"{field} is {max_tokens}; expected at least 1", param=field)
    return max_tokens


def choices_of(n: int | None, field: str = "n") -> int:
    """How many replies the agent wants."""
    if n is None:
        return 1
    if not 1 <= n <= MOST_CHOICES:
        raise BadRequest(f"{field} is {n}; expected 1 to {MOST_CHOICES}", param=field)
    return n
