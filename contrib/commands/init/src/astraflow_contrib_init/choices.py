"""What a configuration is written for, and where unknown answers come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.errors import UserError

RECIPES = {
    "math": "problems with an answer, compared as mathematics",
    "code": "programs, tested in a sandbox",
    "search": "questions, answered by searching passages in several turns",
    "chat-agent": "an agent of your own that talks to the model by OpenAI's protocol",
}
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
    """The answers. ``data``: the user's own prompts, or ``None`` for those that the recipe makes. ``gpus``: 0 for a CPU."""

    recipe: str
    name: str
    model: str
    data: Path | None
    gpus: int
    steps: int

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


def ask_gpus(ask: Ask) -> int:
    """A number of GPUs."""
    question = "GPUs of this host for the run [0: on the CPU]: "
    while True:
        answer = ask(question).strip() or "0"
        if answer.isdecimal() and int(answer) <= MOST_GPUS:
            return int(answer)
        question = f"  expected 0 to {MOST_GPUS} [0]: "
