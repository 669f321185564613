"""Reward ``format``: the form of a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from astraflow_contrib_rubrics.config import FormConfig
from astraflow_contrib_rubrics.patterns import matcher
from astraflow_core.types import Completion, ComponentContext, TrajectoryView

_FENCE = "```"
_BOX = "\\boxed{"
Demand = Callable[[Completion], bool]


class Form:
    """1 if the last completion meets all demands, else 0, or with ``partial`` the share that it meets. All of them need
    time linear in the text."""

    def __init__(self, config: FormConfig, context: ComponentContext) -> None:
        self._config = config
        self._demands = _demands(config)

    async def score(self, view: TrajectoryView) -> float | dict[str, float]:
        """The score in [0, 1]."""
        if not view.completions:
            return 0.0
        if self._config.each_policy:
            last = {completion.policy: completion for completion in view.completions}
            return {policy: self._score(completion) for policy, completion in last.items()}
        return self._score(view.completions[-1])

    def _score(self, completion: Completion) -> float:
        met = [demand(completion) for demand in self._demands]
        return sum(met) / len(met) if self._config.partial else float(all(met))


def _demands(config: FormConfig) -> list[Demand]:
    found: list[Demand] = []
    if config.pattern is not None:
        expression = matcher(config.pattern)
        found.append(lambda c: expression.fullmatch(_encodable(c.text)) is not None)
    if config.tags:
        found.append(lambda c: tags_in_order(c.text, config.tags))
    if config.json_keys is not None:
        keys = config.json_keys
        found.append(lambda c: has_keys(c.text, keys))
    if config.one_box:
        found.append(lambda c: has_one_box(c.text))
    if config.ended:
        found.append(lambda c: c.finish_reason == "stop")
    return found


def _encodable(text: str) -> str:
    """RE2 reads UTF-8, which has no lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def tags_in_order(text: str, tags: tuple[str, ...]) -> bool:
    """Whether each tag is opened once and closed once after some text, one after the other."""
    place = 0
    for tag in tags:
        begin, end = f"<{tag}>", f"</{tag}>"
        if text.count(begin) != 1 or text.count(end) != 1:
            return False
        opened = text.find(begin, place)
        closed = text.find(end, opened)
        if opened < 0 or closed < 0 or not text[opened + len(begin) : closed].strip():
            return False
        place = closed + len(end)
    return True


def has_keys(text: str, keys: tuple[str, ...]) -> bool:
    """Whether the text, or its last fenced block, is a JSON object with these keys."""
    parts = text.split(_FENCE)
    if len(parts) >= 3:
        block = parts[-2] if len(parts) % 2 else parts[-3]
        text = block.removeprefix("json")
    try:
        found: Any = msgspec.json.decode(_encodable(text).strip())
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() >= set(keys)


def has_one_box(text: str) -> bool:
    """Whether there is one ``\\boxed{}``, with something in it."""
    if text.count(_BOX) != 1:
        return False
    begin = text.index(_BOX) + len(_BOX)
    depth = 1
    for index in range(begin, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if not depth:
            return bool(text[begin:index].strip())
    return False
