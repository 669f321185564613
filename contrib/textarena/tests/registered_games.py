"""Games that are registered when this module is imported, and do what none should."""

from __future__ import annotations

import time
from typing import Any

import textarena


class Hostile(textarena.Env):
    def __init__(self, does: str = "raises") -> None:
        self._does = does

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.SinglePlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Go.")

    def step(self, action: str) -> Any:
        match self._does:
            case "nan":
                self.state.set_outcome(reward=float("nan"), reason="")
            case "no rewards":
                self.state.done = True
            case "a word":
                self.state.rewards, self.state.done = {0: "much"}, True
            case "nobody's turn":
                self.state.current_player_id = 7
                self.state.observations[7] = []
                return False, {}
            case "hangs":
                time.sleep(60)
            case _:
                raise RuntimeError("no more")
        return self.state.step()


textarena.register("Hostile-v0", Hostile)
