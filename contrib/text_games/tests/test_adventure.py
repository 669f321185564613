"""Houses that can be won by what is done, and by nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_text_games.adventure import Adventure
from astraflow_contrib_text_games.adventure_levels import AdventureLevels
from astraflow_contrib_text_games.adventure_state import AdventureState
from astraflow_contrib_text_games.config import AdventureConfig, AdventureLevelsConfig
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.subject import context

LEVEL: dict[str, Any] = {
    "kind": "cooking",
    "rooms": {"kitchen": {"north": "shed"}, "shed": {"south": "kitchen", "east": "attic"}, "attic": {"west": "shed"}},
    "doors": [["attic", "shed"]],
    "start": "shed",
    "things": {"leek": "attic", "apple": "kitchen", "onion": "shed", "knife": "kitchen"},
    "recipe": {"leek": {"cut": "sliced", "heat": "fried"}, "apple": {"cut": "", "heat": ""}},
}  # fmt: skip
COOKED = [
    "open east door", "go east", "take leek", "go west", "go south", "read cookbook", "take knife", "slice leek",
    "fry leek", "take apple", "prepare meal", "eat meal",
]  # fmt: skip


def levels(**keys: Any) -> list[Prompt]:
    source = AdventureLevels(AdventureLevelsConfig(**keys), context("dataflow", Path()))
    return [source[number] for number in range(len(source))]


def play(level: Any, replies: Iterable[Action | str], **keys: Any) -> list[Observation]:
    async def played() -> list[Observation]:
        environment = Adventure(AdventureConfig(**keys), context("raas", Path()))
        seen = [await environment.reset(Prompt("p", {"level": level}), 1)]
        for reply in replies:
            assert seen[-1].outcome is None
            seen.append(
                await environment.step(reply if isinstance(reply, Action) else Action(reply))
            )
        return seen

    return asyncio.run(played())


def text(seen: Observation) -> str:
    return str(seen.messages[0]["content"])


def walk(state: AdventureState, to: str) -> None:
    """Go to a room by the shortest way, with nothing but the commands that are possible."""
    first: dict[str, list[str]] = {state.at: []}
    waiting = deque([state.at])
    while to not in first:
        room = waiting.popleft()
        for direction, other in state.rooms[room].items():
            if other not in first:
                first[other] = [*first[room], direction]
                waiting.append(other)
    for direction in first[to]:
        if f"open {direction} door" in state.possible():
            state.do(f"open {direction} door")
        assert f"go {direction}" in state.possible()
        state.do(f"go {direction}")


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("rooms", [2, 6, 16])
def test_each_level_can_be_won_by_commands_that_are_possible(split: str, rooms: int) -> None:
    for prompt in levels(size=12, rooms=rooms, split=split, ingredients=3):
        state = AdventureState(dict(prompt.data["level"]))
        for name in sorted([*state.recipe, "knife"] if state.recipe else ["coin"]):
            walk(state, state.where[name])
            state.do(f"take {name}")
        verbs = {
            "sliced": "slice",
            "diced": "dice",
            "chopped": "chop",
            "fried": "fry",
            "roasted": "roast",
        }
        if state.recipe:
            walk(state, "kitchen")
            for name, how in state.recipe.items():
                for done in filter(None, how.values()):
                    state.do(f"{verbs[done]} {name}")
            assert not state.won
            state.do("prepare meal")
            state.do("eat meal")
        assert state.won and state.points == state.most_points, prompt


def test_points_earn_their_share_and_the_last_ends_the_game() -> None:
    seen = play(LEVEL, COOKED)
    assert "You are hungry" in text(seen[0]) and "-= Shed =-\nThere is a way to the south." in text(
        seen[0]
    )
    assert text(seen[0]).endswith("Possible: go south, inventory, look, open east door, take onion")
    assert "There is a closed door to the east.\nYou see an onion." in text(seen[0])
    assert text(seen[6]).startswith("The meal needs:\n- leek, sliced, fried\n- apple\nThen prepare")
    assert [one.reward for one in seen[1:]] == pytest.approx(
        [0, 0, 1 / 6, 0, 0, 0, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6]
    )
    assert seen[-1].outcome is Outcome.FINISHED
    assert seen[-1].metrics == {"won": 1, "moves": 12, "score": 1}


@pytest.mark.parametrize(
    ("spoils", "score"),
    [("chop leek", 1 / 6), ("roast leek", 1 / 6), ("slice leek|fry leek|fry leek", 3 / 6), ("take apple|slice apple", 2 / 6)],
)  # fmt: skip
def test_what_the_recipe_does_not_want_loses_the_game(spoils: str, score: float) -> None:
    *_, last = play(LEVEL, [*COOKED[:7], *spoils.split("|")])
    assert last.outcome is Outcome.FINISHED and "spoiled" in text(last)
    assert last.metrics["won"] == 0 and last.metrics["score"] == pytest.approx(score)


def test_what_is_not_possible_changes_nothing_and_what_is_does_something() -> None:
    for prompt in levels(size=8):
        state, generator = AdventureState(dict(prompt.data["level"])), random.Random(prompt.id)
        for _ in range(60):
            before = state.state
            for wrong in (
                "",
                "fly",
                "go up",
                "take moon",
                "prepare",
                "fry knife",
                "slice coin",
                "open door",
            ):
                assert state.do(wrong) == "You can't do that." and state.state == before
            if state.won or state.lost:
                break
            command = generator.choice(state.possible())
            assert state.do(f"  {command.title()}. ") != "You can't do that."
            assert state.points <= state.most_points


def test_what_the_meal_does_not_need_can_be_cut_and_burned() -> None:
    *_, last = play(
        LEVEL, ["take onion", *COOKED[:7], "dice onion", "fry onion", "roast onion", *COOKED[7:]]
    )
    assert last.metrics["won"] == 1


def test_tools_turns_and_replies_of_several_lines() -> None:
    def act(command: Any) -> Action:
        return Action("", (FunctionCall("c", "act", {"command": command}),))

    seen = play(LEVEL, [act("take onion"), act(3)], actions="tools", show_actions=False)
    assert seen[1].messages[0]["role"] == "tool" and text(seen[1]) == "You take the onion."
    assert text(seen[2]) == "act needs an argument 'command', a text."
    *_, last = play(LEVEL, ["I look around.\n> take onion", "inventory"], turns=2)
    assert text(last) == "You hold an onion." and last.outcome is Outcome.TRUNCATED
    assert last.reward == 0 and last.metrics == {"won": 0, "moves": 2, "score": 0}


def test_no_seed_mixes_the_splits() -> None:
    train = {prompt.id for prompt in levels(size=200, seed=1)}
    assert not train & {prompt.id for prompt in levels(size=50, seed=2, split="held_out")}


@pytest.mark.parametrize(
    "level",
    [None, {}, {**LEVEL, "kind": "fly"}, {**LEVEL, "kind": "coin"}, {**LEVEL, "start": "moon"}, {**LEVEL, "things": {}}],
)  # fmt: skip
def test_a_prompt_without_a_level_is_named(level: Any) -> None:
    with pytest.raises(
        PromptError, match="prompt 'p' is not a level of the environment 'adventure'"
    ):
        play(level, [])
