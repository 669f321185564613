"""Tasks that are drawn, and tasks of a file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import PromptError
from astraflow_core.types import Prompt
from astraflow_environments.tasks import (
    DrawnTaskKeys,
    PromptList,
    Task,
    drawn,
    id_of,
    is_held_out,
    read_tasks,
    text_of,
)


def numbers(most: int, **keys: Any) -> list[Prompt]:
    def draw(generator: random.Random) -> Task | None:
        number = generator.randrange(most)
        if number % 10 == 0:
            return None
        return str(number), lambda: {"number": number} if number % 10 != 1 else None

    return drawn("numbers", DrawnTaskKeys(**keys), draw)


def test_drawn_tasks_differ_and_a_seed_decides_them() -> None:
    found = numbers(1000, size=100)
    assert len({prompt.id for prompt in found}) == 100
    assert {prompt.data["number"] % 10 for prompt in found} == set(range(2, 10))
    assert found == numbers(1000, size=100) != numbers(1000, size=100, seed=1)
    assert numbers(1000, size=40) == found[:40]


def test_the_task_alone_decides_its_split() -> None:
    train = {p.id for p in numbers(500, size=250)}
    held_out = numbers(500, size=50, split="held_out", seed=4)
    assert not train & {p.id for p in held_out}
    assert all(is_held_out(str(p.data["number"])) for p in held_out)
    share = sum(is_held_out(str(number)) for number in range(5000)) / 5000
    assert 0.18 < share < 0.22


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(PromptError, match=r"'numbers': split 'train' has \d+ tasks.*size = 100"):
        numbers(50, size=100)


def test_a_list_ends_where_it_says() -> None:
    prompts = PromptList([Prompt("a"), Prompt("b")])
    assert len(prompts) == 2 and prompts[1].id == "b"
    for index in (2, -1):
        with pytest.raises(IndexError):
            prompts[index]


def read(file: Path, text: str, limit: int | None = None) -> list[Prompt]:
    file.write_text(text, encoding="utf-8")

    def prompt_of(data: dict[str, Any], number: int) -> Prompt:
        return Prompt(id_of(data, number), {"text": text_of(data, "text")})

    return read_tasks("mine", file, prompt_of, limit)


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    text = '{"text": "x", "id": 7}\n\n{"text": "y"}\n{"text": "z"}\n'
    assert [(p.id, p.data["text"]) for p in read(file, text)] == [
        ("7", "x"),
        ("line:3", "y"),
        ("line:4", "z"),
    ]
    assert len(read(file, text + "broken", limit=3)) == 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"text": 1}', "needs 'text', a text; got 1"),
        ('{"text": " "}', "needs 'text'"),
        ('{"text": "x", "id": true}', "'id' must be a string or an integer"),
        ('{"text": "x", "id": "a"}', "id 'a' is that of an earlier line"),
    ],
)
def test_a_mistake_is_named_by_its_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "tasks.jsonl"
    with pytest.raises(PromptError, match=r"tasks\.jsonl:2: ") as refused:
        read(file, '{"text": "x", "id": "a"}\n' + line)
    assert says in str(refused.value)


def test_a_file_without_tasks_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="has no tasks"):
        read(tmp_path / "empty.jsonl", "\n\n")
    with pytest.raises(PromptError, match=r"cannot read .*none\.jsonl"):
        read_tasks("mine", tmp_path / "none.jsonl", lambda *_: Prompt("a"), None)
    with pytest.raises(PromptError, match="not a regular file"):
        read_tasks("mine", Path("/dev/zero"), lambda *_: Prompt("a"), None)
