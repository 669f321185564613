"""Words spelled backwards: a prompt source, a workflow that gives a second try, and a reward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import PromptError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory, TrajectoryView


class WordsConfig(ConfigModel):
    """``[prompts] use = "spelling:Words"``"""

    path: Path = Field(description="File with one word per line.")


class Words:
    """The words of a file. All lines are checked when it is built, so that a mistake does not end a run halfway."""

    Config = WordsConfig

    def __init__(self, config: WordsConfig, context: ComponentContext) -> None:
        try:
            lines = config.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise PromptError(f"cannot read {config.path}: {error}") from error
        first: dict[str, int] = {}
        for number, word in enumerate(lines, 1):
            if not word.isalpha():
                raise PromptError(f"{config.path}:{number}: expected a word, got {word!r:.40}")
            if first.setdefault(word, number) != number:
                raise PromptError(f"{config.path}:{number}: {word!r} is in line {first[word]} too")
        if not lines:
            raise PromptError(f"{config.path} has no words")
        self._words = lines

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> Prompt:
        word = self._words[index]
        return Prompt(word, {"prompt": f"Spell {word} backwards.", "answer": word[::-1]})


class SecondTryConfig(ConfigModel):
    """``[workflow] use = "spelling:SecondTry"``"""

    tries: Annotated[int, Field(ge=1)] = Field(2, description="Answers of an episode at most.")


class SecondTry:
    """Asks again, in the same conversation, until the answer is right or the tries are used up. The whole conversation
    is one sequence: the policy's tokens are trained, the replies to it are not."""

    Config = SecondTryConfig
    capabilities = frozenset({"multi_turn"})

    def __init__(self, config: SecondTryConfig, context: ComponentContext) -> None:
        self._tries, self._policy = config.tries, context.run.policies[0]

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        data = prompt.data
        if not isinstance(data.get("prompt"), str) or not isinstance(data.get("answer"), str):
            raise WorkflowError(
                f"prompt {prompt.id!r} needs the texts data['prompt'] and ['answer']"
            )
        engine = engines[self._policy].session()
        asked = engine.render([{"role": "user", "content": data["prompt"]}])
        result = await engine.generate(asked)
        sequence, said = engine.sequence(asked, result), [engine.completion(result)]
        while said[-1].text.strip() != data["answer"] and len(said) < self._tries:
            again = engine.render([{"role": "user", "content": "No. Try again."}])
            asked = np.concatenate([sequence.tokens, again])
            result = await engine.generate(asked)
            longer = engine.sequence(asked, result)
            for column in ("loss_mask", "logprobs", "versions"):
                kept = getattr(sequence, column)
                getattr(longer, column)[: len(kept)] = kept
            sequence = longer
            said.append(engine.completion(result))
        return Trajectory((sequence,), tuple(said), metrics={"tries": float(len(said))})


class SpelledConfig(ConfigModel):
    """``[reward] use = "spelling:Spelled"``"""

    per_try: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="What each try after the first costs of a right answer."
    )


class Spelled:
    """1 for the right answer at once, less for a later one, else 0."""

    Config = SpelledConfig

    def __init__(self, config: SpelledConfig, context: ComponentContext) -> None:
        self._per_try = config.per_try

    async def score(self, view: TrajectoryView) -> float:
        """The last completion counts."""
        answer = view.data.get("answer")
        if not isinstance(answer, str):
            raise WorkflowError(f"prompt {view.prompt.id!r} has no text in data['answer']")
        if view.text.strip() != answer:
            return 0.0
        return float(max(0.0, 1.0 - self._per_try * (len(view.completions) - 1)))
