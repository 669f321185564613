"""The games, played by players that know their rules from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_text_games.binary_search import BinarySearch
from astraflow_contrib_text_games.config import GameConfig, LevelsConfig
from astraflow_contrib_text_games.game import TextGame
from astraflow_contrib_text_games.key_door import KeyDoor
from astraflow_contrib_text_games.levels import GameLevels
from astraflow_core.errors import UserError
from astraflow_core.types import (
    Action,
    ComponentContext,
    FunctionCall,
    Observation,
    Outcome,
    Prompt,
    RunInfo,
)

CONTEXT = ComponentContext(RunInfo("r", 0, 1, 0, ("p",), Path()), "raas", "", 0, Path())
GAMES: dict[str, type[TextGame]] = {"key_door": KeyDoor, "binary_search": BinarySearch}
BOTH = pytest.mark.parametrize("game", GAMES)


def levels(game: str, **keys: Any) -> list[Prompt]:
    config = LevelsConfig.model_validate({"game": game, **keys})
    source = GameLevels(config, CONTEXT)
    return [source[index] for index in range(len(source))]


def play(
    game: str, prompt: Prompt, moves: Callable[[Observation], Action | None], **keys: Any
) -> list[Observation]:
    """All observations of an episode."""
    environment = GAMES[game](GameConfig(**keys), CONTEXT)

    async def played() -> list[Observation]:
        seen = [await environment.reset(prompt, 1)]
        while seen[-1].outcome is None and (action := moves(seen[-1])) is not None:
            seen.append(await environment.step(action))
        return seen

    return asyncio.run(played())


def said(seen: Observation) -> str:
    return str(seen.messages[0]["content"])


def earned(seen: list[Observation]) -> float:
    rewards = [one.reward for one in seen]
    assert all(isinstance(reward, float) for reward in rewards)
    return sum(float(str(reward)) for reward in rewards)


def walks(seen: Observation) -> Action:
    """To the key, then to the door, by what the terse state shows."""
    line = said(seen)
    here = next(i for i, square in enumerate(line) if square in "@KD")
    if line[here] == "K":
        return Action("t")
    if "k" not in line and line[here] == "D":
        return Action("o")
    goal = line.find("k") if "k" in line else line.find("d")
    return Action("r" if goal > here else "l")


def halves(highest: int) -> Callable[[Observation], Action]:
    """Guesses the middle of what is possible still."""
    low, high, guess = 1, highest, 0

    def move(seen: Observation) -> Action:
        nonlocal low, high, guess
        low, high = {"<": (low, guess - 1), ">": (guess + 1, high)}.get(said(seen), (low, high))
        guess = (low + high) // 2
        return Action(f"I guess {guess}")

    return move


def player(game: str, prompt: Prompt) -> Callable[[Observation], Action]:
    return walks if game == "key_door" else halves(prompt.data["level"]["highest"])


@BOTH
@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("step_rewards", [True, False, "distance"])
def test_each_level_can_be_won_and_then_earns_one(
    game: str, split: str, step_rewards: bool | str
) -> None:
    for prompt in levels(game, split=split):
        keys = {"wording": "terse", "step_rewards": step_rewards}
        seen = play(game, prompt, player(game, prompt), **keys)
        assert seen[-1].outcome is Outcome.FINISHED, prompt.id
        assert earned(seen) == 1.0 if game == "key_door" else earned(seen) == pytest.approx(1.0)
        assert len(seen) - 1 <= prompt.data["level"]["turns"] <= 6
        assert seen[-1].metrics == {"won": 1.0, "moves": float(len(seen) - 1)}
        if not step_rewards:
            assert [one.reward for one in seen[:-1]] == [0.0] * (len(seen) - 1)


def test_by_distance_each_move_earns_what_it_shortens_the_way() -> None:
    level = {"squares": 5, "player": 2, "key": 1, "door": 3, "turns": 11}
    script = iter("rltltrrrlxo")
    seen = play(
        "key_door",
        Prompt("p", {"level": level}),
        lambda _: Action(next(script)),
        wording="terse",
        step_rewards="distance",
    )
    # The way is five moves: to the key, the key, twice to the door, the door.
    saved = [-1, 1, 0, 1, 1, 1, 1, -1, 1, 0, 1]
    assert [one.reward for one in seen[1:]] == pytest.approx(
        [each / 5 for each in saved], abs=2**-15
    )
    assert seen[-1].outcome is Outcome.FINISHED


@BOTH
def test_the_splits_are_disjoint_whatever_the_seeds(game: str) -> None:
    train = {prompt.id for prompt in levels(game, seed=1)}
    held_out = {prompt.id for prompt in levels(game, seed=2, split="held_out")}
    assert not train & held_out
    assert len(held_out) >= 8
    assert len(train) > 2 * len(held_out)


@BOTH
def test_who_does_nothing_is_cut_off_and_earns_nothing(game: str) -> None:
    prompt = levels(game)[0]
    seen = play(game, prompt, lambda _: Action("hm"))
    assert [one.outcome for one in seen] == [None] * 6 + [Outcome.TRUNCATED]
    assert (earned(seen), seen[-1].metrics) == (0.0, {"won": 0.0, "moves": 6.0})
    assert "Turns left: 5." in said(seen[1])


def test_rewards_along_the_way_are_for_the_key_and_the_door() -> None:
    level = {"squares": 6, "player": 0, "key": 1, "door": 2, "turns": 6}
    moves = iter(["open", "right", "Take.", "left", "right", "right"])
    seen = play("key_door", Prompt("p", {"level": level}), lambda _: Action(next(moves)))
    assert [one.reward for one in seen] == [0, 0, 0, 0.5, 0, 0, 0]
    assert seen[-1].outcome is Outcome.TRUNCATED
    assert said(seen[0]).startswith("You are in a corridor of 6 squares: @kd... . @ is you")
    assert said(seen[1]) == "There is no door here. @kd... . Turns left: 5."
    assert said(seen[2]) == ".Kd... . Turns left: 4."
    assert said(seen[3]) == "You have the key. .@d... . Turns left: 3."


def test_a_guess_earns_half_of_the_bits_that_it_rules_out() -> None:
    level = {"highest": 8, "number": 1, "turns": 4}
    moves = iter(["5", "6", "3", "none"])
    seen = play("binary_search", Prompt("p", {"level": level}), lambda _: Action(next(moves)))
    # 8 → 4 is one of three bits; 6 rules out nothing; 4 → 2 one more.
    assert [one.reward for one in seen] == pytest.approx([0, 0.5 / 3, 0, 0.5 / 3, 0])
    assert said(seen[1]) == "5 is too high. Turns left: 3."


def test_states_are_equal_if_the_same_can_follow() -> None:
    level = {"squares": 6, "player": 2, "key": 3, "door": 0, "turns": 6}

    def states(*words: str) -> list[str | None]:
        moves = iter(words)
        seen = play("key_door", Prompt("p", {"level": level}), lambda _: Action(next(moves)))
        return [one.state for one in seen]

    idle = ["hm"] * 4
    back, stay = states("left", "right", *idle), states("hm", "take", *idle)
    assert back[2] == stay[2]
    assert back[1] != stay[1]
    assert back[0] == stay[0] != stay[2]


@BOTH
def test_moves_may_be_calls_of_tools(game: str) -> None:
    made: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "key_door": [("move", {"direction": "right"}), ("take", {}), ("open", {})],
        "binary_search": [("guess", {"number": 4}), ("guess", {"number": "7"})],
    }
    calls = made[game]
    level = {"squares": 6, "player": 0, "key": 1, "door": 5, "highest": 8, "number": 7, "turns": 6}
    moves = iter(enumerate(calls))

    def move(seen: Observation) -> Action | None:
        names = {tool["function"]["name"] for tool in seen.tools}
        number, call = next(moves, (0, None))
        assert call is None or call[0] in names
        return None if call is None else Action("", (FunctionCall(f"c{number}", *call),))

    seen = play(game, Prompt("p", {"level": level}), move, actions="tools")
    assert all(
        set(one.messages[0]) == {"role", "tool_call_id", "name", "content"} for one in seen[1:]
    )
    assert [one.messages[0]["tool_call_id"] for one in seen[1:]] == [
        f"c{i}" for i in range(len(calls))
    ]
    assert earned(seen) == pytest.approx(0.5 if game == "key_door" else 1.0)


@BOTH
@pytest.mark.parametrize(
    "calls",
    [
        (),
        (FunctionCall("a", "fly", {}),),
        (FunctionCall("a", "guess", {}), FunctionCall("b", "take", {})),
        (FunctionCall("a", "move", '{"direction": '),),
        (FunctionCall("a", "guess", {"number": [1]}),),
    ],
)
def test_what_is_no_call_is_answered(game: str, calls: tuple[FunctionCall, ...]) -> None:
    moves = iter([Action("text", calls)])
    seen = play(game, levels(game)[0], lambda _: next(moves, None), actions="tools")
    answered = [m["tool_call_id"] for m in seen[1].messages if m["role"] == "tool"]
    assert answered == [call.id for call in calls]
    assert (seen[1].reward, seen[1].outcome) == (0.0, None)


@BOTH
@pytest.mark.parametrize(
    "data",
    [{}, {"level": 3}, {"level": {"turns": 6}}, {"level": {"turns": "many"}}],
)
def test_a_prompt_that_is_no_level_is_a_mistake_of_the_user(
    game: str, data: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=r"prompt 'p' is not a level of this game.*game_levels"):
        play(game, Prompt("p", data), lambda _: None)


def test_other_levels_can_be_asked_for() -> None:
    assert len(levels("binary_search", highest=1000, size=10)) == 10
    assert levels("binary_search", highest=1000)[0].data["level"]["turns"] == 10
    assert levels("key_door", squares=12, turns=9)[0].data["level"]["squares"] == 12
    assert levels("key_door", seed=1) != levels("key_door", seed=2)
