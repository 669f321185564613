"""Rows of a file as prompts, all of them checked when the source is built, and kept where they are found by number."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from astraflow_contrib_prompts.config import RowsConfig
from astraflow_contrib_prompts.messages import checked_prompt
from astraflow_contrib_prompts.templates import filled, value_at
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

_PROBLEMS_SHOWN = 10
_IN_MEMORY = 64 << 20
"""Bytes of prompts that are held in memory; more are in a file without a name, which ends with its process."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row: ``where`` it stands, for errors, its ``name`` where it has no id, and its values, or what is wrong with it."""

    where: str
    name: str
    values: dict[str, Any] | ValueError


class FileOfRows(ABC):
    """The prompts of rows. Memory is bounded by :data:`_IN_MEMORY` and some bytes for each prompt."""

    use: ClassVar[str]
    expected: ClassVar[str]

    def __init__(self, config: RowsConfig, context: ComponentContext) -> None:
        folder = context.run.directory
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - as long as the source
            _IN_MEMORY, dir=str(folder) if folder.is_dir() else None
        )
        self._ends = array("Q")
        self._fill(config, self.rows(config))
        if not self._ends:
            raise PromptError(f"{self.place(config)}: has no prompts; expected {self.expected}")

    @abstractmethod
    def rows(self, config: Any) -> Iterator[FileRow]:
        """All rows in order. :class:`PromptError` for a file that cannot be read."""

    def place(self, config: Any) -> Path:
        """What is read, for errors."""
        path: Path = config.path
        return path.expanduser()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        begin = self._ends[index - 1] if index else 0
        self._file.seek(begin)
        name, data = json.loads(self._file.read(self._ends[index] - begin))
        return Prompt(name, data)

    def _fill(self, config: RowsConfig, rows: Iterable[FileRow]) -> None:
        problems: list[str] = []
        count = end = 0
        first: dict[str, str] = {}
        for row in rows:
            try:
                prompt = prompt_of(row, config)
                packed = json.dumps([prompt.id, prompt.data], allow_nan=False).encode()
                if prompt.id in first:
                    raise ValueError(f"id {prompt.id!r} is that of {first[prompt.id]}")
            except (ValueError, TypeError) as error:
                count += 1
                problems += [f"{row.where}: {error}"] if count <= _PROBLEMS_SHOWN else []
                continue
            first[prompt.id] = row.name.replace(":", " ")
            end += self._write(packed)
            self._ends.append(end)
            if len(self._ends) == config.limit:
                break
        if count:
            more = (
                f"\n… and {count - _PROBLEMS_SHOWN} more bad lines"
                if count > _PROBLEMS_SHOWN
                else ""
            )
            raise PromptError("\n".join(problems) + more)

    def _write(self, packed: bytes) -> int:
        try:
            return self._file.write(packed)
        except OSError as error:
            raise PromptError(
                f"prompt source {self.use!r} cannot keep its prompts in a temporary file: {error.strerror}"
            ) from error


def prompt_of(row: FileRow, config: RowsConfig) -> Prompt:
    """The prompt in a row, by the keys; raises :class:`ValueError` with the reason if the row is invalid."""
    if isinstance(row.values, ValueError):
        raise row.values
    values = row.values
    given: dict[str, Any] = {}
    if config.answer_key:
        given["answer"] = value_at(values, config.answer_key)
    asked = (
        filled(config.template, values) if config.template else value_at(values, config.prompt_key)
    )
    given["prompt"] = _prompt(asked, config)
    if config.answer_after and config.answer_key:
        given["answer"] = _after(given["answer"], config)
    name = values.get(config.id_key, row.name)
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ValueError(f"{config.id_key!r} must be a string or an integer, got {name!r:.40}")
    used = {config.id_key, config.answer_key, "" if config.template else config.prompt_key}
    others = values.keys() - used if config.keep is None else config.keep
    data = {key: value_at(values, key) for key in values if key in others}
    if config.keep is not None:
        data |= {key: value_at(values, key) for key in config.keep}
    return Prompt(str(name), data | given)


def _prompt(asked: Any, config: RowsConfig) -> str | list[dict[str, Any]]:
    try:
        prompt = checked_prompt(asked)
    except ValueError as error:
        raise ValueError(f"{config.prompt_key!r} {error}") from error
    if not config.system:
        return prompt
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return [{"role": "system", "content": config.system}, *messages]


def _after(answer: Any, config: RowsConfig) -> str:
    _, mark, after = str(answer).rpartition(config.answer_after)
    if not isinstance(answer, str) or not mark or not after.strip():
        raise ValueError(
            f"{config.answer_key!r} has nothing after {config.answer_after!r} (answer_after), got {answer!r:.60}"
        )
    return after.strip()
