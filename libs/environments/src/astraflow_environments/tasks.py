"""Prompt sources of environments: tasks that are drawn from a seed, and tasks in a file of the user."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.errors import PromptError
from astraflow_core.types import Prompt

Task = tuple[str, Callable[[], dict[str, Any] | None]]
"""A text that is the task's own, and what makes the data of its prompt, or None if it is no good task."""
HELD_OUT_FIFTHS = 1
SEEDS = 2**31
"""Seeds are below this, since many an environment gives its seed to a generator of 32 bits."""
_DRAWS_IN_VAIN = 2000
"""Draws without a task that is new, after which there are no more."""
_MAX_LINE = 64 << 20
_PROBLEMS_SHOWN = 10


class DrawnTaskKeys(ConfigModel):
    """The keys of a prompt source that draws tasks."""

    split: Literal["train", "held_out"] = Field(
        "train", description="Split of the tasks: about four fifths of all tasks, or the rest."
    )
    size: PositiveInt = Field(1000, description="Tasks.")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Seed that selects the tasks and their order."
    )


class PromptList:
    """A prompt source of prompts that are there."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._prompts[index]


def is_held_out(text: str) -> bool:
    """Whether the task of a text belongs to the held-out fifth, whatever seed drew it."""
    return blake2b(b"held out? " + text.encode(), digest_size=8).digest()[0] % 5 < HELD_OUT_FIFTHS


def drawn(
    source: str, keys: DrawnTaskKeys, draw: Callable[[random.Random], Task | None]
) -> list[Prompt]:
    """``keys.size`` different tasks of the split; ``draw`` makes one of a generator, or None if that failed. The id of a
    prompt is a digest of the task's text. :class:`PromptError` if there are too few."""
    generator = random.Random(f"{source} {keys.seed}")
    seen: set[str] = set()
    found: list[Prompt] = []
    in_vain = 0
    while len(found) < keys.size and in_vain < _DRAWS_IN_VAIN:
        in_vain += 1
        task = draw(generator)
        if task is None or task[0] in seen:
            continue
        seen.add(task[0])
        if is_held_out(task[0]) == (keys.split == "held_out") and (data := task[1]()) is not None:
            name = blake2b(task[0].encode(), digest_size=9).hexdigest()
            found.append(Prompt(name, data))
            in_vain = 0
    if len(found) < keys.size:
        raise PromptError(
            f"prompt source {source!r}: split {keys.split!r} has {len(found)} tasks with these keys, fewer than size = "
            f"{keys.size}"
        )
    return found


def drawn_seeds(source: str, keys: DrawnTaskKeys, data: Mapping[str, Any]) -> list[Prompt]:
    """``keys.size`` different seeds below 2**31, as ``data["seed"]`` in addition to ``data``. The seed alone decides the split."""

    def draw(generator: random.Random) -> Task:
        seed = generator.randrange(SEEDS)
        return str(seed), lambda: {**data, "seed": seed}

    return drawn(source, keys, draw)


def seed_of(who: str, task: Prompt, seed: int) -> int:
    """``data["seed"]`` of a task, or one below 2**31 derived from the ``seed`` of the episode; :class:`PromptError` if
    the value is not a seed."""
    given = task.data.get("seed", seed % SEEDS)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise PromptError(
            f"prompt {task.id!r}: 'seed' is {given!r:.40}; {who} needs an integer of at least 0, or none"
        )
    return given


def read_tasks(
    source: str, path: Path, prompt_of: Callable[[dict[str, Any], int], Prompt], limit: int | None
) -> list[Prompt]:
    """The prompts of a file with one JSON object per line, all checked. ``prompt_of`` makes one of an object and its line
    number, and raises :class:`ValueError` with the reason if it is invalid; a :class:`PromptError` names each as ``file:line``."""
    found: dict[str, Prompt] = {}
    problems: list[str] = []
    for number, line in _lines(source, path.expanduser()):
        if limit is not None and len(found) == limit:
            break
        try:
            prompt = prompt_of(_object(line), number)
            if prompt.id in found:
                raise ValueError(f"id {prompt.id!r} is that of an earlier line")
            found[prompt.id] = prompt
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN
        shown = "\n".join(problems[:_PROBLEMS_SHOWN])
        raise PromptError(shown + (f"\n… and {more} more bad lines" if more > 0 else ""))
    if not found:
        raise PromptError(f"{path}: has no tasks; expected one JSON object per line")
    return list(found.values())


def text_of(data: Mapping[str, Any], key: str) -> str:
    """The text at a key; :class:`ValueError` if there is none."""
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"needs {key!r}, a text; got {value!r:.60}")
    return value


def id_of(data: Mapping[str, Any], number: int) -> str:
    """Its ``id``, or ``line:NUMBER``."""
    value = data.get("id", f"line:{number}")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"'id' must be a string or an integer, got {value!r:.40}")
    return str(value)


def _lines(source: str, path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        if not path.is_file() and path.exists() and not path.is_dir():
            raise PromptError(f"prompt source {source!r}: {path.absolute()} is not a regular file")
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE + 1), b""), 1):
                if len(line) > _MAX_LINE:
                    raise PromptError(
                        f"{path}:{number}: a line of over {_MAX_LINE >> 20} MiB; expected one JSON object per line"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        raise PromptError(
            f"prompt source {source!r} cannot read {path.absolute()}: {error.strerror}"
        ) from error


def _object(line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise ValueError(f"expected a JSON object: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
