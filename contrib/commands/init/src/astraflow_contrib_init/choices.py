"""What a configuration is written for, and where unknown answers come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean

RECIPES = {
    "math": "problems with an answer, compared as mathematics",
    "code": "programs, tested in a sandbox",
    "search": "questions, answered by searching passages in several turns",
    "chat-agent": "your own agent, which calls the model by OpenAI's protocol",
}
REWARDED_BY_ENVIRONMENT = ("search",)
"""Recipes without a reward of their own."""
DEFAULT_MODEL = "pypi:SmolLM2-135M-Instruct"
MOST_GPUS = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SOURCES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class Choices:
    """The answers. ``data``: the user's own prompts, or ``None`` for those that the recipe makes. ``gpus``: 0 for a CPU. ``reward``:
    what the run names instead of the reward of the recipe, ``None`` for that."""

    recipe: str
    name: str
    model: str
    data: Path | None
    gpus: int
    steps: int
    reward: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"--name {self.name!r}: expected letters, digits, '.', '_' and '-', a letter or digit first"
            )
        if not 0 <= self.gpus <= MOST_GPUS:
            raise UserError(
                f"--gpus {self.gpus}: expected 0 (CPU) to {MOST_GPUS}, the GPUs of one host; for several hosts see "
                "docs/clusters.md"
            )
        if self.steps < 1:
            raise UserError(f"--steps {self.steps}: expected at least 1")
        if not self.model.strip():
            raise UserError(
                f"--model is empty; give a folder or a reference such as {DEFAULT_MODEL}"
            )
        if self.reward is not None and self.recipe in REWARDED_BY_ENVIRONMENT:
            raise UserError(
                f"--reward {self.reward}: the recipe {self.recipe!r} has the rewards of its environment; leave it out"
            )
        if self.data is not None:
            self.source()

    def source(self) -> str:
        """Name of the prompt source that reads ``data``."""
        path = self.data
        assert path is not None, "asked only where there is data"
        if not path.exists():
            raise UserError(f"--data {path}: there is no such file or folder")
        if self.recipe == "search":
            missing = [n for n in ("questions.jsonl", "passages.jsonl") if not (path / n).is_file()]
            if missing:
                raise UserError(
                    f"--data {path}: the recipe 'search' reads a folder with questions.jsonl and passages.jsonl; "
                    f"missing: {', '.join(missing)}"
                )
            return "search_folder"
        if path.is_dir():
            return "parquet" if next(path.glob("*.parquet"), None) else "dataset_folder"
        try:
            return _SOURCES[path.suffix.lower()]
        except KeyError:
            raise UserError(
                f"--data {path}: expected a file that ends in {', '.join(_SOURCES)}, or a folder of a dataset"
            ) from None


Ask = Callable[[str], str]
"""Shows a question and returns the line that was typed."""


def ask_recipe(ask: Ask) -> str:
    """One of :data:`RECIPES`, by name or number; asks until it is one."""
    names = list(RECIPES)
    listing = "\n".join(f"  {n}. {name:<11} {RECIPES[name]}" for n, name in enumerate(names, 1))
    question = f"What should the model learn?\n{listing}\nnumber or name [1]: "
    while True:
        answer = ask(question).strip().lower() or names[0]
        if answer in names:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        question = f"  {answer!r} is not one of them; number or name [1]: "


def ask_model(ask: Ask) -> str:
    """Any reference of a model."""
    return (
        ask(f"Model (a Hugging Face folder, or a reference) [{DEFAULT_MODEL}]: ").strip()
        or DEFAULT_MODEL
    )


def ask_data(ask: Ask, recipe: str) -> Path | None:
    """A path that exists, or ``None`` for none."""
    kind = "folder" if recipe == "search" else "file or folder"
    question = f"Your data, a {kind} [none: generated examples]: "
    while True:
        answer = ask(question).strip()
        if not answer:
            return None
        if (path := Path(answer).expanduser()).exists():
            return path
        question = f"  there is no {answer!r}; another path [none]: "


def ask_reward(ask: Ask, recipe: str) -> str | None:
    """A reward that is installed or one in a module, or ``None`` for that of the recipe; one that its environment gives is not
    asked for."""
    if recipe in REWARDED_BY_ENVIRONMENT:
        return None
    question = "Reward, one that is installed or MODULE:NAME of your own [that of the recipe]: "
    while True:
        answer = ask(question).strip()
        if not answer:
            return None
        try:
            check_reward(answer)
        except UserError as error:
            question = f"  {error}; another [that of the recipe]: "
        else:
            return answer


def check_reward(name: str) -> None:
    """:class:`UserError` if no reward of this name is installed; one in a module is looked for when the run is checked."""
    found = {s.component.name for s in Catalog.discover().components(Kind.REWARD)}
    if ":" not in name and name.rpartition("/")[2] not in found:
        hint = did_you_mean(name, sorted(found)) or f"; installed are {', '.join(sorted(found))}"
        raise UserError(f"no reward {name!r} is installed{hint}")


def ask_gpus(ask: Ask) -> int:
    """A number of GPUs."""
    question = "GPUs of this host for the run [0: on the CPU]: "
    while True:
        answer = ask(question).strip() or "0"
        if answer.isdecimal() and int(answer) <= MOST_GPUS:
            return int(answer)
        question = f"  expected 0 to {MOST_GPUS} [0]: "
