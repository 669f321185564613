"""Prompt source ``jsonl``: a file with one JSON object per line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from astraflow_contrib_prompts.config import JsonLinesConfig
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

_PROBLEMS_SHOWN = 10
_MAX_LINE = 64 << 20
"""Bytes: far more than a prompt, and little enough to be read before it is refused."""


class JsonLines:
    """The prompts of a file, all checked when it is opened.

    ``prompt_key`` and ``answer_key`` become ``data["prompt"]`` and ``data["answer"]``; other keys stay in
    ``data``. A prompt's id is its ``id``, if it has one, else ``line:NUMBER``. Empty lines are skipped.
    """

    def __init__(self, config: JsonLinesConfig, context: ComponentContext) -> None:
        self._config = config
        path = config.path.expanduser()
        self._prompts: list[Prompt] = []
        first_line: dict[str, int] = {}
        problems: list[str] = []
        try:
            with _opened(path) as file:
                for number, line in enumerate(iter(partial(file.readline, _MAX_LINE + 1), b""), 1):
                    if len(self._prompts) == config.limit:
                        break
                    if len(line) > _MAX_LINE:
                        raise PromptError(
                            f"{path}:{number}: a line of over {_MAX_LINE >> 20} MiB; expected one JSON object per line"
                        )
                    if not line.strip():
                        continue
                    try:
                        prompt = self._parse(line, number)
                    except ValueError as error:
                        problems.append(f"{path}:{number}: {error}")
                        continue
                    if prompt.id in first_line:
                        problems.append(
                            f"{path}:{number}: id {prompt.id!r} is that of line {first_line[prompt.id]}"
                        )
                    first_line.setdefault(prompt.id, number)
                    self._prompts.append(prompt)
        except OSError as error:
            raise PromptError(
                f"prompt source 'jsonl' cannot read {path.absolute()}: {error.strerror}"
            ) from error
        if problems:
            shown = "\n".join(problems[:_PROBLEMS_SHOWN])
            more = len(problems) - _PROBLEMS_SHOWN
            raise PromptError(shown + (f"\n… and {more} more bad lines" if more > 0 else ""))
        if not self._prompts:
            raise PromptError(f"{path}: has no prompts; expected one JSON object per line")

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._prompts[index]

    def _parse(self, line: bytes, number: int) -> Prompt:
        """Raises :class:`ValueError` that says what is wrong with the line."""
        try:
            data: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.ValidationError as error:
            raise ValueError(f"expected a JSON object: {error}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
        keys = (self._config.prompt_key, self._config.answer_key)
        for key in filter(None, keys):
            if key not in data:
                raise ValueError(
                    f"has no key {key!r}; its keys: {', '.join(sorted(data)) or 'none'}"
                )
        for key, name in zip(keys, ("prompt", "answer"), strict=True):
            if key and key != name:
                data[name] = data.pop(key)
        problem = _prompt_problem(data["prompt"])
        if problem:
            raise ValueError(f"{self._config.prompt_key!r} {problem}")
        prompt_id = data.pop("id", f"line:{number}")
        if not isinstance(prompt_id, (str, int)) or prompt_id == "":
            raise ValueError(f"'id' must be a string or an integer, got {prompt_id!r:.40}")
        return Prompt(str(prompt_id), data)


def _opened(path: Path) -> BinaryIO:
    """A file of which one can tell that it ends: a device or a pipe may not."""
    if not path.is_file() and path.exists() and not path.is_dir():
        raise PromptError(f"prompt source 'jsonl': {path.absolute()} is not a regular file")
    return path.open("rb")


def _prompt_problem(value: Any) -> str:
    """What is wrong with a prompt, or ''."""
    if isinstance(value, str):
        return "" if value else "is empty"
    if not isinstance(value, list) or not value:
        return f"must be text or a list of messages, got {value!r:.40}"
    for message in value:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            return f"has a message without 'role' and 'content': {message!r:.60}"
    return ""
