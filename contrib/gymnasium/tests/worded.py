"""Environments of Gymnasium whose observations are words, and some that do what none should."""

from __future__ import annotations

import string
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROOMS = {
    "hall": {"north": "attic", "east": "yard"},
    "attic": {"south": "hall"},
    "yard": {"west": "hall"},
}
ALL = string.ascii_letters + string.digits + string.punctuation + string.whitespace


class Rooms(gymnasium.Env[dict[str, Any], str]):
    """Find the room that the seed draws, by directions in words that ``info["commands"]`` lists."""

    observation_space = spaces.Dict({"room": spaces.Text(20), "steps": spaces.Discrete(100)})
    action_space = spaces.Text(10, charset=ALL)

    def __init__(self, longest: int = 6) -> None:
        self._longest = longest

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._room, self._steps = (options or {}).get("room", "hall"), 0
        self._goal = str(self.np_random.choice(["attic", "yard"]))
        return self._seen()

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._room, self._steps = ROOMS[self._room][action], self._steps + 1
        observed, info = self._seen()
        there = self._room == self._goal
        return observed, float(there), there, self._steps >= self._longest, info

    def _seen(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"room": self._room, "steps": self._steps}, {
            "commands": list(ROOMS[self._room]), "walked": np.float32(self._steps),
        }  # fmt: skip


class Shapes(gymnasium.Env[np.ndarray, Any]):
    """Shows the action that it was given; any action space."""

    observation_space = spaces.Box(-9, 9, (2,))

    def __init__(self, space: str) -> None:
        self.action_space = eval(space, {"spaces": spaces, "np": np})

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return np.zeros(2), 1.0, False, False, {"walked": 1.0}


class Hostile(gymnasium.Env[str, int]):
    """``does`` names what is wrong with it."""

    observation_space: Any = spaces.Text(100, charset=ALL)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, does: str) -> None:
        self._does = does
        if does == "image":
            self.observation_space = spaces.Dict(
                {"near": spaces.Dict({"picture": spaces.Box(0, 255, (64, 64, 3), np.uint8)})}
            )
        if does == "graph":
            self.observation_space = spaces.Graph(spaces.Discrete(3), None)
        if does == "picture to draw":
            self.action_space = spaces.Box(0, 1, (64, 64))
        if does == "old":
            self.observation_space = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return "begin" if self._does == "old reset" else ("begin", {})

    def step(self, action: int) -> Any:
        match self._does:
            case "old step":
                return "next", 1.0, False, {}
            case "reward":
                return "next", "much", False, False, {}
            case "nan":
                return "next", float("nan"), False, False, {}
            case "info":
                return "next", 1.0, False, False, None
            case "observation":
                return object(), 1.0, False, False, {}
            case "large":
                return np.zeros(1000), 1.0, False, False, {}
            case "hangs":
                time.sleep(60)
        raise RuntimeError("no more")
