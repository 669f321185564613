"""Text that messages quote stays text: it never becomes a special token of the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from astraflow_core.errors import UserError
from astraflow_core.protocols.workflow import Tokenizer
from astraflow_gateway.capture.graph import Tokens
from astraflow_gateway.requests import NotEncodable

_MARKS = range(0xF0000, 0xFFFFE)
"""Characters for private use, one of which stands for a special text while messages are rendered."""

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]


class Quoting:
    """Encodes rendered messages. Where a question, the result of a tool or the description of one has the text of a
    special token (``<|im_end|>``), it is encoded as the letters that it is written with, so that only the template
    ends a message. What assistants said is encoded as their model writes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        texts = sorted((t for t in tokenizer.special_texts if len(t) > 1), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    def render(self, messages: Sequence[Mapping[str, Any]], render: Render) -> Tokens:
        """The token ids of all that ``render`` makes of ``messages`` without tools; :class:`UserError` if the tokenizer, or
        the template, refuses them."""
        try:
            return self.encode(render(messages, ()), 0, messages, (), render)
        except NotEncodable as error:
            raise error.cause from error

    def encode(
        self,
        text: str,
        start: int,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        render: Render,
    ) -> Tokens:
        """The token ids of ``text[start:]``; ``text`` is what ``render`` makes of ``messages`` and ``tools``.
        :class:`NotEncodable` if the tokenizer refuses it."""
        quoted = self._quoted([_untrusted(message) for message in messages], tools)
        if not quoted:
            return self._ids(text[start:])
        free = (mark for mark in map(chr, _MARKS) if mark not in text)
        marks = dict(zip(sorted(quoted), free, strict=False))
        marked = render(
            [{**m, **self._marked(_untrusted(m), marks)} for m in messages],
            self._marked(tools, marks),
        )
        texts = {mark: special for special, mark in marks.items()}
        parts = re.split(f"([{''.join(texts)}])", marked)
        if "".join(texts.get(part, part) for part in parts) != text:
            raise UserError(
                f"a message has {' and '.join(sorted(quoted))}, which the model's template reads; rephrase it"
            )
        return self._joined(parts, texts, start)

    def _joined(self, parts: Sequence[str], texts: Mapping[str, str], start: int) -> Tokens:
        ids: list[Tokens] = [np.zeros(0, np.int32)]
        for part in parts:
            special = texts.get(part)
            whole = special or part
            if len(whole) > start:
                pieces = (whole[:1], whole[1:]) if special else (whole[start:],)
                ids += [self._ids(piece) for piece in pieces if piece]
            start = max(0, start - len(whole))
        return np.concatenate(ids)

    def _ids(self, text: str) -> Tokens:
        try:
            return self._tokenizer.encode(text)
        except UserError as error:
            raise NotEncodable(error) from error

    def _quoted(self, *values: Any) -> set[str]:
        """The special texts in ``values``."""
        if self._special is None:
            return set()
        return {found for text in _strings(values) for found in self._special.findall(text)}

    def _marked(self, value: Any, marks: Mapping[str, str]) -> Any:
        assert self._special is not None, "something is quoted"
        if isinstance(value, str):
            return self._special.sub(lambda found: marks[found[0]], value)
        if isinstance(value, Mapping):
            return {
                self._marked(key, marks): self._marked(each, marks) for key, each in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._marked(each, marks) for each in value]
        return value


def _untrusted(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a message others have written."""
    if message.get("role") == "assistant":
        return {}
    return {key: message[key] for key in ("content", "name") if key in message}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each)
