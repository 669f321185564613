"""A server of OpenEnv: a number from 1 to 9 to guess, each guess answered by too low (<) or too high (>).

``uvicorn number_server:app`` in this folder serves it; `examples/openenv.toml` has it started.
"""

from __future__ import annotations

import random
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    """One guess."""

    message: str


class Told(Observation):
    """The answer to a guess."""

    text: str = ""


class Numbers(Environment):
    """Earns 1 for the number, which the seed draws, within four guesses."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self._number = State(), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Told:
        """Draw a number."""
        self._number = random.Random(seed).randint(1, 9)
        self._state = State(episode_id=episode_id, step_count=0)
        return Told(text="?")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Told:
        """Judge a guess; anything but a digit gets no hint."""
        self._state.step_count += 1
        guess = int(action.message) if action.message.isdecimal() else 0
        sign = (
            "="
            if guess == self._number
            else "?"
            if not guess
            else "<"
            if guess < self._number
            else ">"
        )
        return Told(
            text=sign, reward=float(sign == "="), done=sign == "=" or self._state.step_count == 4
        )

    @property
    def state(self) -> State:
        """How many guesses there were."""
        return self._state


app = create_fastapi_app(Numbers, Guess, Told, max_concurrent_envs=64)
