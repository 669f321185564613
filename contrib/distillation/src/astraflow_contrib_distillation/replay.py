"""The same episode with another prompt: what a teacher reads that is given more than the policy was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import GenerateResult, Prompt, Sampling, Trajectory

Tokens = npt.NDArray[np.int32]
_FIELD = re.compile(r"\{(\w+)\}")


class Recorder:
    """An engine that keeps what it generated; everything else is the engine's."""

    def __init__(self, engine: PolicyEngine, made: list[GenerateResult]) -> None:
        self._engine, self._made = engine, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, prompt: Tokens, sampling: Sampling | None = None) -> GenerateResult:
        """As the engine does."""
        result = await self._engine.generate(prompt, sampling)
        self._made.append(result)
        return result

    def session(self) -> Recorder:
        """The engine with a session."""
        return Recorder(self._engine.session(), self._made)


class PlayedAgain:
    """An engine that answers with what was generated before, in the same order."""

    def __init__(self, engine: PolicyEngine, made: Sequence[GenerateResult]) -> None:
        self._engine, self._made = engine, iter(made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, prompt: Tokens, sampling: Sampling | None = None) -> GenerateResult:
        """The next result."""
        result = next(self._made, None)
        if result is None:
            raise WorkflowError(
                f"with the prompt that the teacher is given, the workflow asks policy {self._engine.policy!r} more often "
                "than with its own; leave `given` out for a workflow that acts on its prompt"
            )
        return result

    def session(self) -> PlayedAgain:
        """Itself: a session is only a cache."""
        return self


def given_prompt(prompt: Prompt, given: str) -> Prompt:
    """The prompt that a teacher reads: text, or the last message of the user. :class:`UserError` if ``given`` names what
    the data does not have."""
    content = prompt.data.get("prompt")
    if isinstance(content, str):
        return replace(prompt, data={**prompt.data, "prompt": _filled(prompt, given, content)})
    messages = [dict(each) for each in content or [] if isinstance(each, Mapping)]
    asked = [place for place, each in enumerate(messages) if each.get("role") == "user"]
    if not asked or not isinstance(messages[asked[-1]].get("content"), str):
        raise UserError(
            f"workflow 'taught': given needs data['prompt'] to be text or messages with text of the user; prompt "
            f"{prompt.id!r} has {content!r:.80}"
        )
    last = messages[asked[-1]]
    last["content"] = _filled(prompt, given, last["content"])
    return replace(prompt, data={**prompt.data, "prompt": messages})


def _filled(prompt: Prompt, given: str, text: str) -> str:
    values = {**prompt.data, "prompt": text}

    def value(field: re.Match[str]) -> str:
        if field[1] not in values:
            raise UserError(
                f"workflow 'taught': given names {{{field[1]}}}, and the data of prompt {prompt.id!r} has "
                f"{', '.join(map(repr, values))}"
            )
        return str(values[field[1]])

    return _FIELD.sub(value, given)


async def replayed(
    workflow: Any,
    engines: Mapping[str, PolicyEngine],
    made: Mapping[str, Sequence[GenerateResult]],
    prompt: Prompt,
) -> Trajectory:
    """The episode of ``workflow`` with ``prompt``, in which each engine answers as before."""
    players = {name: PlayedAgain(engine, made[name]) for name, engine in engines.items()}
    again = await workflow.run_episode(players, prompt)
    if again is None:
        raise WorkflowError(
            f"with the prompt that the teacher is given, the workflow rejects the episode of prompt {prompt.id!r}"
        )
    return again  # type: ignore[no-any-return]
