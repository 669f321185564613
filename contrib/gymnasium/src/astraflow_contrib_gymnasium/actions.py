"""Replies as actions of a space, and the tool that makes them."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from astraflow_contrib_gymnasium.config import GymnasiumConfig, plain_name
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_core.types import Action
from astraflow_environments.actions import first_tagged, tool

TOOL = "act"
MOST_NUMBERS = 64
"""Of an action that is an array."""
_AROUND = (string.punctuation + string.whitespace).replace("-", "")
_Array = spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary


class ActionReader:
    """What replies mean in an action space. ``legal`` are the actions that are possible now; None: any."""

    def __init__(self, space: Space[Any], config: GymnasiumConfig) -> None:
        self._space, self._config = space, config
        self.legal: list[Any] | None = None
        self._names: dict[str, int] = {}
        who = f"environment 'gymnasium': {config.id}"
        if problem := _not_text(space):
            raise PreflightError(f"{who} has actions that cannot be text: {problem}")
        if config.action_names:
            if not isinstance(space, spaces.Discrete) or len(config.action_names) != space.n:
                raise PreflightError(
                    f"{who} has the action space {space!r:.200}, and action_names has {len(config.action_names)} names; "
                    "there must be one for each action of a Discrete space"
                )
            first = int(space.start)
            self._names = {plain_name(n): first + i for i, n in enumerate(config.action_names)}
        if config.legal_actions and not isinstance(space, spaces.Discrete | spaces.Text):
            raise PreflightError(
                f"{who} has the action space {space!r:.200}; legal_actions is for Discrete and Text"
            )

    def allow(self, info: dict[str, Any]) -> None:
        """Take the actions that are possible now from ``info``; :class:`EnvironmentFailed` if it has none."""
        key = self._config.legal_actions
        if key is None:
            return
        told = info.get(key)
        if isinstance(told, np.ndarray) and told.dtype in (np.int8, np.bool_):
            first = int(self._space.start) if isinstance(self._space, spaces.Discrete) else 0
            told = [first + int(number) for number in np.flatnonzero(told)]
        try:
            self.legal = [self._named(one) for one in told]  # type: ignore[union-attr]
        except (TypeError, ValueError) as error:
            raise EnvironmentFailed(
                "malformed", f"gave info[{key!r}] = {told!r:.80}, which lists no actions: {error}"
            ) from error

    def read(self, action: Action) -> Any:
        """The action of a reply; :class:`ValueError` with the reason for the model if it is not one."""
        if self._config.actions == "tools":
            chosen = self._called(action)
        else:
            tagged = first_tagged(action.text, "action")
            chosen = self._written(action.text if tagged is None else tagged[1], tagged is None)
        if self.legal is not None and chosen not in self.legal:
            raise ValueError(f"{self.name_of(chosen)!r:.80} is not possible now. {self.listed()}")
        return chosen

    def listed(self) -> str:
        """The actions that are possible now, for the model; nothing where that is not known."""
        if self.legal is None:
            return ""
        return f"Actions: {', '.join(map(self.name_of, self.legal))}"

    def name_of(self, chosen: Any) -> str:
        """What an action is called."""
        if self._names and not isinstance(chosen, str):
            return self._config.action_names[int(chosen) - int(self._space.start)]  # type: ignore[attr-defined]
        return str(chosen)

    def instructions(self, turns: int) -> str:
        """How to act, for the model."""
        if self._config.actions == "tools":
            how = f"Call the tool {TOOL} with one action in each turn."
        elif isinstance(self._space, spaces.Text):
            how = f"Reply with {self._wanted()} in each turn."
        else:
            how = f"Reply with {self._wanted()} in each turn, on the last line or in <action></action>."
        return f"You act in an environment, {turns} turns at most. {how}"

    def tools(self) -> tuple[dict[str, Any], ...]:
        """The tool for this turn; none where replies are actions."""
        if self._config.actions == "text":
            return ()
        schema = _schema(self._space)
        if isinstance(self._space, spaces.Discrete):
            numbers = self.legal if self.legal is not None else range(int(self._space.n))
            if self._names:
                legal = self.legal
                names = (
                    list(map(self.name_of, legal))
                    if legal is not None
                    else self._config.action_names
                )
                schema = {"type": "string", "enum": list(names)}
            elif self.legal is not None:
                schema = {"type": "integer", "enum": list(numbers)}
        elif self.legal is not None:
            schema = {"type": "string", "enum": self.legal}
        return (tool(TOOL, "Act once.", action=schema),)

    def _wanted(self) -> str:
        space = self._space
        if self._config.action_names:
            return f"one of these actions: {', '.join(self._config.action_names)}"
        if isinstance(space, spaces.Discrete):
            first = int(space.start)
            return f"the number of an action, {first} to {first + int(space.n) - 1}"
        if isinstance(space, spaces.Text):
            return f"an action in text of at most {space.max_length} characters"
        return f"an action, JSON of this schema: {json.dumps(_schema(space))}"

    def _called(self, action: Action) -> Any:
        if not action.calls:
            raise ValueError(f"Call the tool {TOOL}.")
        call = action.calls[0]
        if call.name != TOOL:
            raise ValueError(f"There is no tool {call.name!r:.80}; call {TOOL}.")
        if not isinstance(call.arguments, dict) or "action" not in call.arguments:
            raise ValueError(f"{TOOL} needs an argument 'action'.")
        told = call.arguments["action"]
        named = isinstance(told, str) and isinstance(self._space, spaces.Discrete | spaces.Text)
        return self._written(told, False) if named else self._value(told)

    def _written(self, text: str, whole_reply: bool) -> Any:
        space = self._space
        if isinstance(space, spaces.Text):
            text = text.strip()
            known = {plain_name(one): one for one in self.legal or ()}
            return known.get(plain_name(text)) or self._value(text)
        if whole_reply:
            text = next(iter(text.strip().splitlines()[-1:]), "")
        if isinstance(space, spaces.Discrete):
            return self._numbered(text)
        try:
            return self._value(json.loads(text))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"{text!r:.80} is not an action: reply with {self._wanted()}."
            ) from error

    def _numbered(self, text: str) -> Any:
        for said in (text, text.split()[-1] if text.split() else ""):
            name = plain_name(said)
            if name in self._names:
                return np.int64(self._names[name])
            digits = said.strip(_AROUND)
            if not self._names and digits.removeprefix("-").isdecimal() and len(digits) < 20:
                return self._value(int(digits))
        raise ValueError(f"{text!r:.80} is not an action: reply with {self._wanted()}.")

    def _value(self, told: Any) -> Any:
        try:
            return value_in(self._space, told)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{error}. It has to be {self._wanted()}.") from error

    def _named(self, one: Any) -> Any:
        """A legal action as the environment lists it: a number or a name of Discrete, or a text."""
        if isinstance(one, str) and plain_name(one) in self._names:
            return self._names[plain_name(one)]
        if isinstance(one, str) and isinstance(self._space, spaces.Text):
            return one
        chosen = int(value_in(self._space, int(one)))
        return chosen


def value_in(space: Space[Any], told: Any) -> Any:
    """What JSON says as a value of a space; :class:`ValueError` if it is none."""
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        whole = isinstance(told, int) and not isinstance(told, bool)
        if not whole or not first <= told < first + int(space.n):
            raise ValueError(
                f"{told!r:.80} is not a number from {first} to {first + int(space.n) - 1}"
            )
        return np.int64(told)
    if isinstance(space, spaces.Text):
        return _text_in(space, told)
    if isinstance(space, spaces.Dict):
        if not isinstance(told, dict) or told.keys() != space.spaces.keys():
            raise ValueError(f"{told!r:.80} is not an object with {', '.join(space.spaces)}")
        return {name: value_in(part, told[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(told, list) or len(told) != len(space.spaces):
            raise ValueError(f"{told!r:.80} is not a list of {len(space.spaces)}")
        return tuple(value_in(*pair) for pair in zip(space.spaces, told, strict=True))
    return _array_in(space, told)


def _text_in(space: spaces.Text, told: Any) -> str:
    if not isinstance(told, str):
        raise ValueError(f"{told!r:.80} is not a text")
    if not space.min_length <= len(told) <= space.max_length:
        raise ValueError(
            f"a text has {space.min_length} to {space.max_length} characters, not {len(told)}"
        )
    if odd := sorted(set(told) - set(space.character_set)):
        raise ValueError(f"{odd[0]!r} is not a character of it")
    return told


def _array_in(space: Space[Any], told: Any) -> Any:
    shape = space.shape or ()
    try:
        numbers = np.asarray(told, np.float64)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    with np.errstate(all="ignore"):
        array = numbers.astype(space.dtype)
    whole = array.dtype.kind == "f" or np.array_equal(array, numbers)
    if array.shape != shape or not whole or not space.contains(array):
        raise ValueError(f"{told!r:.80} is not an element of {space!r:.120}")
    return array


def _not_text(space: Space[Any]) -> str | None:
    if isinstance(space, spaces.Discrete | spaces.Text):
        return None
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Iterable[Space[Any]] = (
            space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        )
        return next(filter(None, map(_not_text, parts)), None)
    if isinstance(space, _Array) and math.prod(space.shape) <= MOST_NUMBERS:
        return None
    return f"{space!r:.200}"


def _schema(space: Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}
    if isinstance(space, spaces.Text):
        return {"type": "string", "maxLength": space.max_length}
    if isinstance(space, spaces.Dict):
        parts = {name: _schema(part) for name, part in space.spaces.items()}
        return {"type": "object", "properties": parts, "required": list(parts)}
    if isinstance(space, spaces.Tuple):
        return {"type": "array", "prefixItems": [_schema(part) for part in space.spaces]}
    schema: dict[str, Any] = {
        "type": "number" if isinstance(space, spaces.Box) and space.dtype.kind == "f" else "integer"
    }
    for size in reversed(space.shape or ()):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return schema
