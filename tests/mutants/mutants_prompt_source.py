"""Prompt sources with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import PromptError
from astraflow_core.types import Prompt
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed

WORDS = [f"word{n}" for n in range(40)]


class Words:
    """Words of a file or, without one, of a list in an order that a seed decides."""

    class Config(ConfigModel):
        """Its keys."""

        seed: int = 0
        path: str = ""

    capabilities = frozenset({"generated"})

    def __init__(self, config: Config, context: Any) -> None:
        self.config, self.words = config, self.made(config)

    def made(self, config: Config) -> list[str]:
        if config.path:
            return self.read(Path(config.path))
        return random.Random(config.seed).sample(WORDS, len(WORDS))

    def read(self, path: Path) -> list[str]:
        words = path.read_text(encoding="utf-8").splitlines()
        for number, word in enumerate(words, 1):
            if not word.isalnum():
                raise PromptError(f"{path}:{number}: expected a word, got {word!r}")
        return words

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Any:
        return Prompt(self.words[index], {"prompt": f"Spell {self.words[index]}.", "level": index})


class OfWords(PromptSourceConformance):
    """The source with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = Words

    @pytest.fixture
    def component(self) -> Subject:
        return installed("prompt_source", f"mutants_prompt_source:{self.mistake.__name__}")

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        file = tmp_path / "words.txt"
        file.write_text("one\ntwo words\n")
        use = f"mutants_prompt_source:{self.mistake.__name__}"
        return [Damaged(installed("prompt_source", use, {"path": str(file)}), (f"{file}:2",))]

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(Path(__file__).parent))


class TestHealthy(OfWords):
    pass


class Empty(Words):
    def made(self, config: Any) -> list[str]:
        return []


class TestEmpty(OfWords):
    wrong = "has no prompts"
    caught_by = "test_every_prompt_has_a_unique_id"
    mistake = Empty


class OneId(Words):
    def __getitem__(self, index: int) -> Any:
        return Prompt("word", {"prompt": self.words[index]})


class TestOneId(OfWords):
    wrong = "gives all prompts one id"
    caught_by = "test_every_prompt_has_a_unique_id"
    mistake = OneId


class NumberedIds(Words):
    def __getitem__(self, index: int) -> Any:
        one: Any = index
        return Prompt(one, {"prompt": self.words[index]})


class TestNumberedIds(OfWords):
    wrong = "gives ids that are integers"
    caught_by = "test_every_prompt_has_a_unique_id"
    mistake = NumberedIds


class Dicts(Words):
    def __getitem__(self, index: int) -> Any:
        return {"prompt": self.words[index]}


class TestDicts(OfWords):
    wrong = "gives dicts in the place of prompts"
    caught_by = "test_every_prompt_has_a_unique_id"
    mistake = Dicts


class Tuples(Words):
    def __getitem__(self, index: int) -> Any:
        return Prompt(self.words[index], {"prompt": self.words[index], "range": (1, 2)})


class TestTuples(OfWords):
    wrong = "has tuples in its data, which arrive as lists"
    caught_by = "test_data_survives_serialization"
    mistake = Tuples


class Missing(Words):
    def __getitem__(self, index: int) -> Any:
        return Prompt(self.words[index], {"prompt": self.words[index], "score": float("nan")})


class TestMissing(OfWords):
    wrong = "has NaN in its data, as tables have for what is missing"
    caught_by = "test_data_survives_serialization"
    mistake = Missing


class Streams(Words):
    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self.next = 0

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        self.next += 1
        return super().__getitem__((self.next - 1) % len(self))


class TestStreams(OfWords):
    wrong = "gives the next prompt of a stream, whatever the index"
    caught_by = "test_a_prompt_is_the_same_in_whatever_order_they_are_read"
    mistake = Streams


class TestStreamsResumed(OfWords):
    wrong = "starts over when a walk continues"
    caught_by = "test_iteration_continues_from_every_position"
    mistake = Streams


class Endless(Words):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % len(self))


class TestEndless(OfWords):
    wrong = "starts over beyond its end"
    caught_by = "test_it_has_the_length_that_it_reports"
    mistake = Endless


class ReadsAnew(Words):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.3)
        return super().__getitem__(index)


class TestReadsAnew(OfWords):
    wrong = "reads its whole file for each prompt"
    caught_by = "test_prompts_are_read_quickly"
    mistake = ReadsAnew


class Shuffles(Words):
    def made(self, config: Any) -> list[str]:
        return random.sample(WORDS, len(WORDS))


class TestShuffles(OfWords):
    wrong = "draws from the generator of the process"
    caught_by = "test_prompts_do_not_depend_on_global_generators"
    mistake = Shuffles


class OfASet(Words):
    def made(self, config: Any) -> list[str]:
        return list(set(super().made(config)))


class TestOfASet(OfWords):
    wrong = "takes prompts in the order of a set, which is another in each process"
    caught_by = "test_another_process_has_the_same_prompts"
    mistake = OfASet


class TestDials(OfWords):
    wrong = "calls a server when it is imported"
    caught_by = "test_another_process_has_the_same_prompts"

    @pytest.fixture
    def component(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            lines = (
                "import socket",
                f"socket.create_connection(('127.0.0.1', {listening.getsockname()[1]})).close()",
                "from mutants_prompt_source import Words",
            )
            (tmp_path / "words_that_dial.py").write_text("\n".join(lines))
            monkeypatch.syspath_prepend(str(tmp_path))
            yield installed("prompt_source", "words_that_dial:Words")


class OneSeed(Words):
    def made(self, config: Any) -> list[str]:
        return WORDS


class TestOneSeed(OfWords):
    wrong = "declares that its seed makes the prompts, and does not look at it"
    caught_by = "test_its_seed_decides_the_prompts"
    mistake = OneSeed


class ReadsOn(Words):
    def read(self, path: Path) -> list[str]:
        return [word for word in path.read_text(encoding="utf-8").splitlines() if word.isalnum()]


class TestReadsOn(OfWords):
    wrong = "leaves out lines that it cannot read"
    caught_by = "test_damaged_data_is_named_by_place"
    mistake = ReadsOn


class NoLine(Words):
    def read(self, path: Path) -> list[str]:
        words = path.read_text(encoding="utf-8").splitlines()
        if not all(word.isalnum() for word in words):
            raise PromptError(f"{path} is malformed")
        return words


class TestNoLine(OfWords):
    wrong = "does not say which line is wrong"
    caught_by = "test_damaged_data_is_named_by_place"
    mistake = NoLine
