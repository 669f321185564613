"""The environment ``gymnasium``."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from astraflow_contrib_gymnasium.actions import ActionReader
from astraflow_contrib_gymnasium.config import GymnasiumConfig
from astraflow_contrib_gymnasium.making import made
from astraflow_contrib_gymnasium.texts import plain_of, text_of
from astraflow_core.errors import EnvironmentFailed, PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import said
from astraflow_environments.tasks import seed_of

MALFORMED = "malformed"


class GymnasiumEnvironment:
    """An environment of Gymnasium (https://gymnasium.farama.org, API of 0.26 and later): ``terminated`` is finished,
    ``truncated`` is truncated, and what a step returns is what the turn earned."""

    def __init__(self, config: GymnasiumConfig, context: ComponentContext) -> None:
        self._config = config
        self._environment = made(config)
        self._reader = ActionReader(self._environment.action_space, config)
        self._taken = self._illegal = 0
        self._metrics: dict[str, float] = {}
        self._seen = ""

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode with ``data["seed"]`` of the prompt, or one derived from ``seed``; :class:`PromptError` if that is no
        seed."""
        options = {**self._config.options, **_table(task)}
        given: dict[str, Any] = {"seed": seed_of("the environment 'gymnasium'", task, seed)}
        if options:  # an environment without options need not take any
            given["options"] = options
        observed, info = _parts(self._environment.reset(**given), "reset", 2)
        self._taken = self._illegal = 0
        self._metrics = {}
        self._read_info(info)
        instructions = self._config.instructions
        if instructions is None:
            instructions = self._reader.instructions(self._config.turns)
        return self._observation(None, self._text(observed), instructions)

    def step(self, action: Action) -> Observation:
        """Take the action of a reply. A reply that is not an action gets an observation that says so, and costs a turn."""
        self._taken += 1
        try:
            chosen = self._reader.read(action)
        except ValueError as wrong:
            self._illegal += 1
            message = self._config.illegal_message
            return self._ended(self._config.illegal_reward) or self._observation(
                action,
                str(wrong) if message is None else message,
                reward=self._config.illegal_reward,
                again=True,
            )
        observed, reward, terminated, truncated, info = _parts(
            self._environment.step(chosen), "step", 5
        )
        if not isinstance(reward, Real | np.bool_):
            raise EnvironmentFailed(
                MALFORMED, f"gave the reward {reward!r:.80}; a reward is a finite number"
            )
        self._read_info(info, over=bool(terminated or truncated))
        return self._ended(float(reward), terminated, truncated) or self._observation(
            action, self._text(observed), reward=float(reward)
        )

    def close(self) -> None:
        """Close it."""
        self._environment.close()

    def _read_info(self, info: Any, over: bool = False) -> None:
        if not isinstance(info, dict):
            raise EnvironmentFailed(MALFORMED, f"returned info that is not a dict: {info!r:.80}")
        self._metrics.update((key, info[key]) for key in self._config.metrics if key in info)
        if not over:
            self._reader.allow(info)

    def _ended(
        self, reward: float, terminated: bool = False, truncated: bool = False
    ) -> Observation | None:
        if not (terminated or truncated or self._taken == self._config.turns):
            return None
        outcome = Outcome.FINISHED if terminated else Outcome.TRUNCATED
        metrics = {**self._metrics, "illegal_actions": float(self._illegal)}
        return Observation((), reward, outcome, metrics=metrics)

    def _text(self, observed: Any) -> str:
        if self._config.observations == "render":
            rendered: Any = self._environment.render()
            if not isinstance(rendered, str):
                raise EnvironmentFailed(MALFORMED, f"rendered {rendered!r:.80}, which is not text")
            return plain_of(rendered)
        try:
            if self._config.fields:
                observed = {name: observed[name] for name in self._config.fields}
            return text_of(observed)
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailed(
                MALFORMED, f"gave an observation that is not text: {error}"
            ) from error

    def _observation(
        self,
        action: Action | None,
        text: str,
        instructions: str = "",
        reward: float = 0.0,
        again: bool = False,
    ) -> Observation:
        """``again``: the text is not of the environment, whose state is as it was."""
        parts = (instructions, text, "" if again else self._reader.listed())
        shown = "\n".join(filter(None, parts)) or " "
        if not again:
            self._seen = text
        state = None
        if self._config.observed_state:
            state = f"{self._config.turns - self._taken} {self._reader.legal} {self._seen}"
        messages = said(action, shown)
        return Observation(messages, reward, tools=self._reader.tools(), state=state)


def _table(task: Prompt) -> dict[str, Any]:
    options = task.data.get("options", {})
    if not isinstance(options, dict):
        raise PromptError(
            f"prompt {task.id!r}: 'options' is {options!r:.40}; the environment 'gymnasium' needs an object, or none"
        )
    return options


def _parts(answered: Any, call: str, count: int) -> tuple[Any, ...]:
    if isinstance(answered, tuple) and len(answered) == count:
        return answered
    kind = f"a tuple of {len(answered)}" if isinstance(answered, tuple) else type(answered).__name__
    wanted = (
        "(observation, info)"
        if count == 2
        else "(observation, reward, terminated, truncated, info)"
    )
    raise EnvironmentFailed(
        MALFORMED, f"gave {kind} from {call}; expected {wanted}, as Gymnasium has it since 0.26"
    )
