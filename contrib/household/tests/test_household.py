"""Rooms in which tasks can be solved by what is done, and by nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from astraflow_contrib_household.config import HouseholdConfig, TaskKind, TasksConfig
from astraflow_contrib_household.demonstrations import demonstration, solution
from astraflow_contrib_household.environment import Household
from astraflow_contrib_household.levels import HouseholdTasks
from astraflow_contrib_household.room import Room
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.subject import context

KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
LEVEL: dict[str, Any] = {
    "kind": "heat", "object": "mug", "target": "shelf",
    "places": ["shelf 1", "microwave 1", "drawer 1", "sinkbasin 1", "fridge 1"],
    "objects": {"mug 1": "drawer 1", "fork 1": "shelf 1"},
}  # fmt: skip
HEATED = [
    "go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to microwave 1", "heat mug 1 with microwave 1",
    "go to shelf 1", "put mug 1 in/on shelf 1",
]  # fmt: skip


def play(level: Any, replies: Iterable[Action | str], **keys: Any) -> list[Observation]:
    async def played() -> list[Observation]:
        environment = Household(HouseholdConfig(**keys), context("raas", Path()))
        seen = [await environment.reset(Prompt("p", {"level": level}), 1)]
        for reply in replies:
            assert seen[-1].outcome is None
            action = reply if isinstance(reply, Action) else Action(f"THOUGHT: hm. ACTION: {reply}")
            seen.append(await environment.step(action))
        return seen

    return asyncio.run(played())


def text(seen: Observation) -> str:
    return str(seen.messages[0]["content"])


def tasks(**keys: Any) -> list[Prompt]:
    source = HouseholdTasks(TasksConfig(**keys), context("dataflow", Path()))
    return [source[number] for number in range(len(source))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_each_task_can_be_solved_by_actions_that_are_listed(kind: TaskKind, split: str) -> None:
    for prompt in tasks(kinds=(kind,), split=split, size=25):
        level = dict(prompt.data["level"])
        room = Room(level)
        assert not room.solved
        for command in solution(room):
            assert command in room.possible(), (level, command)
            assert not room.solved
            room.do(command)
        assert room.solved, level


def test_an_episode_has_the_wording_of_alfworld() -> None:
    seen = play(LEVEL, HEATED)
    first = text(seen[0])
    assert (
        "ACTION: your next action" in first
        and "Here is an example.\nYou are in the middle of a room." in first
    )
    assert (
        "Here is your task. You are in the middle of a room. Looking quickly around you, you see a shelf 1, "
        in first
    )
    assert (
        "Your task is to: heat some mug and put it in shelf.\nAVAILABLE ACTIONS: go to drawer 1, "
        in first
    )
    told = [text(one).splitlines()[0] for one in seen[1:-1]]
    assert told == [
        "You arrive at drawer 1. The drawer 1 is closed.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a mug 1.",
        "You pick up the mug 1 from the drawer 1.",
        "You arrive at microwave 1. The microwave 1 is closed.",
        "You heat the mug 1 using the microwave 1; it is hot now.",
        "You arrive at shelf 1. On the shelf 1, you see a fork 1.",
    ]
    assert (seen[-1].reward, seen[-1].outcome) == (1, Outcome.FINISHED)
    assert seen[-1].metrics == {"won": 1, "moves": 7}


@pytest.mark.parametrize(
    ("commands", "solved"),
    [
        (HEATED, True),
        ([c for c in HEATED if not c.startswith("heat")], False),
        ([c for c in HEATED if not c.startswith("open")], False),
        ([*HEATED[:5], "go to fridge 1", "cool mug 1 with fridge 1", *HEATED[5:]], False),
        ([*HEATED[:5], "go to sinkbasin 1", "clean mug 1 with sinkbasin 1", *HEATED[5:]], True),
        (["go to shelf 1", "take fork 1 from shelf 1", *HEATED], False),
        ([c.replace("mug 1", "mug 2") for c in HEATED], False),
    ],
)
def test_only_what_the_task_asks_for_solves_it(commands: list[str], solved: bool) -> None:
    room = Room(LEVEL)
    for command in commands:
        room.do(command)
    assert room.solved == solved


def test_two_objects_have_to_be_there() -> None:
    level = {**LEVEL, "kind": "puttwo", "objects": {"mug 1": "drawer 1", "mug 2": "sinkbasin 1"}}
    room = Room(level)
    commands = solution(room)
    assert [c for c in commands if c.startswith("put ")] == [
        "put mug 1 in/on shelf 1",
        "put mug 2 in/on shelf 1",
    ]
    for command in commands[:-1]:
        room.do(command)
    assert not room.solved
    room.do(commands[-1])
    assert room.solved


def test_what_is_not_listed_changes_nothing_and_what_is_does_not_fail() -> None:
    for prompt in tasks(size=10):
        room, generator = Room(dict(prompt.data["level"])), random.Random(prompt.id)
        for _ in range(60):
            before = room.state
            for wrong in (
                "take mug 9 from shelf 1",
                "go to garden 1",
                "",
                "open",
                "heat with",
                "go to " + room.at,
            ):
                assert room.do(wrong) == "Nothing happens." and room.state == before
            command = generator.choice(room.possible())
            assert room.do(f"  {command.title()}. ") != "Nothing happens."
            held = [name for name, place in room.where.items() if not place]
            assert held == ([room.held] if room.held else [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_demonstration_is_of_the_same_kind_and_ends_with_the_solution(kind: TaskKind) -> None:
    shown = demonstration(kind)
    word = {"put": "put some ", "puttwo": "find two "}.get(kind, f"{kind} some ")
    assert f"Your task is to: {word}" in shown and "ACTION: take " in shown
    assert shown.splitlines()[-1].startswith("You put the ")
    assert "Nothing happens" not in shown


def test_a_demonstration_can_be_a_conversation() -> None:
    (seen,) = play(LEVEL, [], demonstrated="turns")
    roles = [message["role"] for message in seen.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert seen.messages[-1]["content"].startswith("Here is your task. You are in the middle")
    told = [str(message["content"]) for message in seen.messages]
    assert "\n".join(told[2:-1]) in demonstration("heat")
    room = Room(LEVEL)
    assert room.possible() == told[-1].rpartition("AVAILABLE ACTIONS: ")[2].split(", ")


def test_tools_and_plain_replies() -> None:
    def act(command: Any) -> Action:
        return Action("", (FunctionCall("c", "act", {"command": command}),))

    seen = play(
        LEVEL, [act("look"), act(3)], actions="tools", show_actions=False, demonstration=False
    )
    assert "AVAILABLE" not in text(seen[0]) and "Here is an example" not in text(seen[0])
    assert (
        seen[1].messages[0]["role"] == "tool"
        and text(seen[1]) == "You are in the middle of a room."
    )
    assert text(seen[2]) == "act needs an argument 'command', a text."
    plain = play(
        LEVEL, [Action("I think.\ngo to shelf 1"), Action("ACTION: look\nACTION: inventory")]
    )
    assert text(plain[1]).startswith("You arrive at shelf 1.")
    assert text(plain[2]).startswith("You are not carrying anything.")
    cut = play(LEVEL, ["look", "look"], turns=2)
    assert (cut[-1].outcome, cut[-1].reward) == (Outcome.TRUNCATED, 0)


def test_no_seed_mixes_the_splits() -> None:
    train = {p.id for p in tasks(size=200, seed=1)}
    assert not train & {p.id for p in tasks(size=50, seed=2, split="held_out")}
    assert train != {p.id for p in tasks(size=200, seed=2)}


@pytest.mark.parametrize(
    "level",
    [
        None,
        3,
        {},
        {**LEVEL, "kind": "fly"},
        {**LEVEL, "places": ["moon 1"]},
        {**LEVEL, "objects": {"mug 1": "shelf 9"}},
    ],
)
def test_a_prompt_without_a_level_is_named(level: Any) -> None:
    with pytest.raises(
        PromptError, match=r"prompt 'p' is not a task of the environment 'household'"
    ):
        play(level, [])
