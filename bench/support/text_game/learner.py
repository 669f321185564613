"""A policy that plays key and door and learns, without services: the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from astraflow_core.catalog import Catalog
from astraflow_core.types import Action, Batch, ComponentContext, LossInputs, Prompt, RunInfo
from astraflow_environments.building import ChosenEnvironment
from astraflow_testing.stamping import stamped
from astraflow_wire.sparse import key_of

MOVES = "lrto"
SIGNS, PLAYER = ".@kdKD", "@KD"
SQUARES = 6
GROUPS, GROUP_SIZE = 4, 8
EVALUATED = 10
"""Games for each held-out level."""


@dataclass
class Game:
    """One episode: what was seen, done and earned in each turn."""

    prompt: Prompt
    states: list[str]
    keys: list[str]
    moves: list[int]
    logprobs: list[float]
    rewards: list[float]


class Learner:
    """Plays, and makes one update with the algorithm ``use`` after every ``GROUPS`` groups."""

    def __init__(self, use: str, keys: dict[str, Any], seed: int, folder: Path) -> None:
        catalog = Catalog.discover()
        run = RunInfo("turn-credit", seed, 1, GROUP_SIZE, ("p",), folder)
        context = ComponentContext(run, "trainer", "p", seed, folder)
        selected, config = catalog.validate_options("algorithm", use, keys, "algorithm")
        self._algorithm = selected.build(config, context)
        source, _ = catalog.validate_options(
            "prompt_source", "game_levels", {"squares": SQUARES}, "prompts"
        )

        def levels(split: str) -> list[Prompt]:
            _, chosen = catalog.validate_options(
                "prompt_source", "game_levels", {"squares": SQUARES, "split": split}, "prompts"
            )
            made = source.build(chosen, context)
            return [made[index] for index in range(len(made))]

        self._levels, self._held_out = levels("train"), levels("held_out")
        environment = ChosenEnvironment.of({"use": "key_door", "wording": "terse"}, context)
        most = max(GROUPS * GROUP_SIZE, EVALUATED * len(self._held_out))
        self._games = [environment.build(seat)[0] for seat in range(most)]
        self._rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self._model = torch.nn.Sequential(
            torch.nn.Linear((2 * SQUARES - 1) * len(SIGNS), 64), torch.nn.Tanh(), torch.nn.Linear(64, len(MOVES))
        )  # fmt: skip
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-2)
        self._updates = 0

    async def learn(self, updates: int) -> list[float]:
        """The share of games on held-out levels that are won, before each tenth update and after the last."""
        won = []
        for update in range(updates):
            if update % 10 == 0:
                won.append(await self._won())
            chosen = self._rng.choice(len(self._levels), GROUPS, replace=False)
            prompts = [self._levels[index] for index in chosen for _ in range(GROUP_SIZE)]
            self._update(await self._played(prompts))
        return [*won, await self._won()]

    async def _won(self) -> float:
        games = await self._played([each for each in self._held_out for _ in range(EVALUATED)])
        return float(np.mean([sum(game.rewards) == 1.0 for game in games]))

    async def _played(self, prompts: Sequence[Prompt]) -> list[Game]:
        seen = [
            await game.reset(prompt, 0) for game, prompt in zip(self._games, prompts, strict=False)
        ]
        played = [Game(prompt, [], [], [], [], []) for prompt in prompts]
        going = list(range(len(prompts)))
        while going:
            told = ["".join(m["content"] for m in seen[index].messages) for index in going]
            with torch.no_grad():
                logprobs = torch.log_softmax(self._model(_inputs(told)), 1).numpy()
            drawn = self._rng.gumbel(size=logprobs.shape) + logprobs
            for place, index in enumerate(going):
                game, move = played[index], int(drawn[place].argmax())
                game.states.append(told[place])
                game.keys.append(seen[index].state)
                game.moves.append(move)
                game.logprobs.append(float(logprobs[place, move]))
                seen[index] = await self._games[index].step(Action(MOVES[move]))
                game.rewards.append(seen[index].reward)
            going = [index for index in going if seen[index].outcome is None]
        return played

    def _update(self, games: list[Game]) -> None:
        batch = _batch(games)
        batch = replace(batch, advantages=self._algorithm.advantages(batch))
        weights = self._algorithm.weights(batch)
        states = [state for game in games for state in game.states]
        moves = torch.tensor([move for game in games for move in game.moves])
        spread = torch.log_softmax(self._model(_inputs(states)), 1)
        logprobs = torch.zeros(len(batch.tokens))
        mask = torch.from_numpy(batch.loss_mask)
        logprobs = logprobs.masked_scatter(mask, spread.gather(1, moves[:, None])[:, 0])
        inputs = LossInputs(
            logprobs=logprobs, behaviour=torch.from_numpy(batch.logprobs), advantages=torch.from_numpy(batch.advantages),
            mask=mask, row=torch.from_numpy(batch.row_of_token), rows=len(batch), step=self._updates,
            weights={name: torch.from_numpy(share) for name, share in weights.items()},
        )  # fmt: skip
        loss = self._algorithm.loss(inputs)
        self._optimizer.zero_grad()
        torch.stack([part * value for part, value in loss.terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._updates += 1


def _inputs(states: Sequence[str]) -> torch.Tensor:
    """What is at each distance from the player, left and right, so that moves carry over to squares not met."""
    seen = []
    for state in states:
        player = next(place for place, sign in enumerate(state) if sign in PLAYER)
        wide = "." * (SQUARES - 1 - player) + state + "." * player
        seen.append([SIGNS.index(sign) for sign in wide])
    return torch.nn.functional.one_hot(torch.tensor(seen), len(SIGNS)).flatten(1).float()


def _batch(games: list[Game]) -> Batch:
    """Each turn as a sequence of its own, of a token that stands for the state and the move."""
    counts = [len(game.moves) for game in games]
    turns = sum(counts)
    total = np.repeat([sum(game.rewards) for game in games], counts)

    def at_moves(values: list[Any], dtype: Any) -> Any:
        both = np.zeros((turns, 2), dtype)
        both[:, 1] = values
        return both.reshape(-1)

    def of_turns(name: str) -> list[Any]:
        return [value for game in games for value in getattr(game, name)]

    mask = at_moves([True] * turns, np.bool_)
    none = np.zeros(turns, np.float32)
    batch = Batch(
        id="b", policy="p", version=0, lengths=np.full(turns, 2, np.int32), tokens=at_moves(of_turns("moves"), np.int32),
        loss_mask=mask, logprobs=at_moves(of_turns("logprobs"), np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32), rewards=total.astype(np.float32),
        group=np.repeat(np.arange(len(games)) // GROUP_SIZE, counts),
        trajectory=np.repeat(np.arange(len(games)), counts),
        group_size=none.astype(np.int32), group_mean=none, group_std=none,
        turn_rewards=at_moves(of_turns("rewards"), np.float32),
        turn_states=at_moves([key_of(key) for key in of_turns("keys")], np.int64),
    )  # fmt: skip
    return stamped(batch, np.zeros(turns, np.bool_))
