"""Games of TextArena, beside the same ones played by TextArena alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import textarena

from astraflow_contrib_textarena.config import TextArenaConfig, TextArenaPlayersConfig
from astraflow_contrib_textarena.environments import OnePlayerGame, PlayersGame
from astraflow_core.errors import EnvironmentFailed, PreflightError, PromptError
from astraflow_core.types import Action, Observation, Outcome, Prompt
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.pool import EnvironmentPool
from astraflow_testing.conformance.subject import context

NOWHERE = context("raas", Path("/nonexistent"))
PROMPT = Prompt("p", {"seed": 11})


def text(observation: Observation) -> str:
    (message,) = observation.messages
    return str(message["content"])


def moves(seed: int) -> random.Random:
    return random.Random(f"moves {seed}")


def a_move(generator: random.Random) -> str:
    words = [
        "check",
        "bet",
        "call",
        "fold",
        "up",
        "down",
        "left",
        "right",
        "red",
        "hit",
        "stand",
        "cooperate",
    ]
    numbers = [
        str(generator.randrange(9)),
        f"{generator.randrange(3)} {generator.randrange(3)}",
        f"col {generator.randrange(7)}",
    ]
    return f"[{generator.choice([*words, *numbers, *numbers, *numbers])}]"  # fmt: skip


def by_the_library(
    game: str, players: int, seed: int, most: int
) -> tuple[list[tuple[int, str]], Any, int]:
    """What it shows each player at each turn, all of its history; rewards and moves of the game, if it ends."""
    bare, generator, seen = textarena.make(game), moves(seed), []
    bare.reset(num_players=players, seed=seed)
    for count in range(1, most + 1):
        seen.append(bare.get_observation())
        done, _ = bare.step(action=a_move(generator))
        if done:
            return seen, bare.close()[0], count
    return seen, None, most


GAMES = [
    ("GuessTheNumber-v0", 1), ("FrozenLake-v0", 1), ("Mastermind-v0", 1), ("Bandit-v0", 1), ("Blackjack-v0", 1),
    ("TowerOfHanoi-v0", 1), ("2048-v0", 1), ("TicTacToe-v0", 2), ("ConnectFour-v0", 2), ("KuhnPoker-v0-short", 2),
    ("Nim-v0", 2), ("IteratedPrisonersDilemma-v0", 2), ("ThreePlayerTicTacToe-v0", 3), ("LiarsDice-v0", 3),
]  # fmt: skip


@pytest.mark.parametrize(("game", "players"), GAMES)
def test_games_are_those_of_the_library(game: str, players: int) -> None:
    one: Any
    if players == 1:
        one = OnePlayerGame(TextArenaConfig(game=game, turns=60), NOWHERE)
    else:
        one = PlayersGame(TextArenaPlayersConfig(game=game, players=players, turns=60), NOWHERE)
    for seed in (1, 2):
        expected, rewards, count = by_the_library(game, players, seed, 60)
        generator = moves(seed)
        seen = one.reset(Prompt("p", {"seed": seed}), 0)
        histories = dict.fromkeys(range(players), "")
        said: dict[int, str] = {}
        for player, history in expected:
            assert seen.role == ("" if players == 1 else f"player_{player}")
            # Its history has the player's own actions, too, which the conversation has by itself.
            new = history[len(histories[player]) :]
            if player in said:
                named = ("Player", f"Player {player}")
                lines = (f"\n[{name}] {said[player]}" for name in named)
                mine = next((line for line in lines if line in new), "")
                new = new.replace(mine, "", 1)
            assert text(seen) == (new.removeprefix("\n") or "It is your turn.")
            histories[player] = history
            said[player] = a_move(generator)
            seen = one.step(Action(said[player], role=seen.role))
        assert seen.metrics["moves"] == count
        if rewards is None:
            assert (seen.outcome is Outcome.TRUNCATED and not seen.reward) or set(
                seen.reward.values()
            ) == {0}  # type: ignore[union-attr]
            continue
        assert seen.outcome is Outcome.FINISHED
        named_rewards = {f"player_{player}": reward for player, reward in rewards.items()}
        assert seen.reward == (rewards[0] if players == 1 else named_rewards)


def test_an_illegal_move_is_reported_once_and_then_loses() -> None:
    game = PlayersGame(TextArenaPlayersConfig(game="TicTacToe-v0"), NOWHERE)
    assert game.reset(PROMPT, 0).role == "player_0"
    again = game.step(Action("99"))
    assert again.role == "player_0" and "attempted an invalid move" in text(again)
    lost = game.step(Action("I do not know"))
    assert lost.reward == {"player_0": -1, "player_1": 1} and lost.outcome is Outcome.FINISHED
    assert lost.metrics["lost_by_illegal_move"] == 1 and lost.metrics["player_1_reward"] == 1


def test_a_game_is_won_by_replies_in_each_form() -> None:
    game = PlayersGame(TextArenaPlayersConfig(game="TicTacToe-v0", shown=("game_board",)), NOWHERE)
    first = game.reset(PROMPT, 0)
    assert text(first).startswith("[GAME] Current Board:") and "Your goal" not in text(first)
    for reply in ("0", "[3]", "I think [9], no: <action>1</action>", "4"):
        seen = game.step(Action(reply))
        assert seen.outcome is None
    assert "[9]" not in text(seen)
    assert game.step(Action("2")).reward == {"player_0": 1, "player_1": -1}


def test_the_seed_draws_who_sits_where() -> None:
    game = PlayersGame(TextArenaPlayersConfig(game="TicTacToe-v0", seats="drawn"), NOWHERE)
    begins = [game.reset(Prompt("p", {"seed": seed}), 0).role for seed in range(40)]
    assert 10 < begins.count("player_1") < 30
    assert game.reset(Prompt("p", {"seed": begins.index("player_1")}), 5).role == "player_1"
    game.step(Action("x")), game.step(Action("x"))
    seen = game.reset(Prompt("p", {"seed": begins.index("player_1")}), 5)
    game.step(Action("x", role=seen.role))
    assert game.step(Action("x", role=seen.role)).reward == {"player_1": -1, "player_0": 1}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"game": "TicTacTo-v0"}, r"is not a game of TextArena; did you mean TicTacToe-v0"),
        ({"game": "TicTacToe-v0"}, "is not played by 1: play it with 'textarena_players'"),
        ({"game": "Mastermind-v0", "arguments": {"colours": 3}}, "does not take these arguments"),
        ({"game": "no_such_module:Game-v0"}, "cannot be made: No module named"),
        ({"game": "UsedCar-v0-balanced"}, "cannot be made: ImportError"),
    ],
)
def test_mistakes_are_named(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(PreflightError, match=told):
        OnePlayerGame(TextArenaConfig(**keys), NOWHERE)


def test_a_game_that_cannot_be_made_again_fails_its_episode_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game = OnePlayerGame(TextArenaConfig(game="Bandit-v0"), NOWHERE)
    with monkeypatch.context() as broken:
        broken.setattr(textarena, "make", lambda *_, **__: int("no level"))
        with pytest.raises(EnvironmentFailed, match="Bandit-v0 cannot be made: ValueError"):
            game.reset(Prompt("p"), 0)
    assert game.reset(Prompt("p"), 0).messages


def test_words_that_cannot_be_fetched_and_prompts_without_a_seed_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise LookupError("Resource words not found.")

    with monkeypatch.context() as patched:
        patched.setattr(textarena, "make", missing)
        with pytest.raises(PreflightError, match=r"python -m nltk\.downloader words"):
            OnePlayerGame(TextArenaConfig(game="Wordle-v0"), NOWHERE)
    with pytest.raises(PreflightError, match="TicTacToe-v0 is not played by 3"):
        PlayersGame(TextArenaPlayersConfig(game="TicTacToe-v0", players=3), NOWHERE)
    with pytest.raises(PromptError, match="prompt 'p': 'seed' is '3'"):
        OnePlayerGame(TextArenaConfig(game="Bandit-v0"), NOWHERE).reset(
            Prompt("p", {"seed": "3"}), 0
        )


async def failures(*does: str) -> list[tuple[str, str]]:
    """The error that a pool raises for each faulty game."""
    found = []
    for one in does:
        table = {
            "use": "textarena",
            "game": "registered_games:Hostile-v0",
            "arguments": {"does": one},
        }
        keys = EnvironmentKeys(environment=table, most_environments=1, step_deadline_s=0.5)
        pool = EnvironmentPool(keys, NOWHERE)
        try:
            async with pool.episode() as environment:
                await environment.reset(PROMPT, 1)
                with pytest.raises(EnvironmentFailed) as caught:
                    await environment.step(Action("1"))
        finally:
            await pool.close()
        found.append((caught.value.kind, caught.value.reason))
    return found


@pytest.mark.slow
def test_a_hostile_game_fails_its_episode_and_says_how() -> None:
    told = {
        "nan": ("malformed", "gave the reward nan"),
        "no rewards": (
            "malformed",
            "is over and gave the rewards None, of which player 0 has none",
        ),
        "a word": ("malformed", "gave the rewards {0: 'much'}"),
        "nobody's turn": ("malformed", "says that it is the turn of 7"),
        "hangs": ("timeout", "gave no answer within 0.5 s"),
        "raises": ("error", "raised RuntimeError: no more"),
    }
    for (kind, reason), expected in zip(asyncio.run(failures(*told)), told.values(), strict=True):
        assert kind == expected[0] and expected[1] in reason, (kind, reason)
