"""Environments of Gymnasium, beside the same ones played by Gymnasium alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from worded import Rooms

from astraflow_contrib_gymnasium.config import GymnasiumConfig, GymnasiumSeedsConfig
from astraflow_contrib_gymnasium.environment import GymnasiumEnvironment
from astraflow_contrib_gymnasium.seeds import GymnasiumSeeds
from astraflow_contrib_gymnasium.texts import plain_of
from astraflow_core.errors import EnvironmentFailed, PreflightError, PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.pool import EnvironmentPool
from astraflow_testing.conformance.subject import context

NOWHERE = Path("/nonexistent")


def built(id: str, **keys: Any) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(GymnasiumConfig(id=id, **keys), context("raas", NOWHERE))


def text(observation: Observation) -> str:
    return "\n".join(str(message["content"]) for message in observation.messages)


def call(value: Any) -> Action:
    return Action("", (FunctionCall("c", "act", {"action": value}),))


@pytest.mark.parametrize(
    ("id", "turns", "shown"),
    [
        ("Blackjack-v1", 9, "[{0}, {1}, {2}]"),
        ("CliffWalking-v1", 60, "{0}"),
        ("FrozenLake-v1", 60, "{0}"),
    ],
)
def test_episodes_are_those_of_the_library(id: str, turns: int, shown: str) -> None:
    ours, bare = built(id, turns=turns, instructions=""), gymnasium.make(id)
    generator = random.Random(7)
    ends = set()
    for seed in range(20):
        observed, _ = bare.reset(seed=seed)
        seen = ours.reset(Prompt("p", {"seed": seed}), 1)
        steps = 0
        while seen.outcome is None:
            parts = observed if isinstance(observed, tuple) else (observed,)
            assert text(seen) == shown.format(*map(int, parts))
            action = generator.randrange(bare.action_space.n)  # type: ignore[attr-defined]
            seen, steps = ours.step(Action(f"I think.\n{action}.")), steps + 1
            observed, reward, terminated, truncated, _ = bare.step(action)
            assert seen.reward == reward
            if terminated or truncated or steps == turns:
                assert seen.outcome is (Outcome.FINISHED if terminated else Outcome.TRUNCATED)
        ends.add(seen.outcome)
        assert seen.metrics == {"illegal_actions": 0}
    assert (Outcome.FINISHED in ends) is (id != "CliffWalking-v1")
    ours.close()


def test_a_bound_of_the_environment_truncates() -> None:
    one = built("CliffWalking-v1", arguments={"max_episode_steps": 2}, turns=9)
    one.reset(Prompt("p", {}), 2**62)
    assert one.step(Action("0")).outcome is None
    assert one.step(Action("0")).outcome is Outcome.TRUNCATED


def test_what_is_drawn_and_coloured_is_text() -> None:
    one = built(
        "FrozenLake-v1", observations="render", instructions="Go.", arguments={"is_slippery": False}
    )
    assert text(one.reset(Prompt("p", {}), 1)) == "Go.\n[S]FFF\nFHFH\nFFFH\nHFFG"
    assert text(one.step(Action("2"))) == "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG"
    assert plain_of("\x1b[34;1mR\x1b[0m \x1b[43mT\x1b[0m\x1b[2J\n") == "(R) [T]"


def test_commands_that_info_lists_are_offered_and_others_not_made() -> None:
    one = built("worded:Rooms", legal_actions="commands", metrics=["walked"], illegal_reward=-0.5)
    first = one.reset(Prompt("p", {"seed": 1, "options": {"room": "attic"}}), 1)
    assert text(first).splitlines()[1:] == ["room: attic", "steps: 0", "Actions: south"]
    wrong = one.step(Action("<action>Down</action>"))
    assert (text(wrong), wrong.reward) == ("'Down' is not possible now. Actions: south", -0.5)
    long = one.step(Action("I go to the south"))
    assert text(long).startswith(
        "a text has 1 to 10 characters, not 17. It has to be an action in text"
    )
    assert "room: hall" in text(one.step(Action("I know. <action>SOUTH.</action>")))
    bare = Rooms()
    bare.reset(seed=1)
    for way in ("north", "south", "east"):
        seen = one.step(Action(way))
        if seen.outcome is not None:
            break
    assert seen.outcome is Outcome.FINISHED and seen.reward == 1
    assert seen.metrics == {"walked": {"attic": 2, "yard": 4}[bare._goal], "illegal_actions": 2}


def test_a_mask_of_numpy_lists_actions() -> None:
    one = built(
        "Taxi-v4", legal_actions="action_mask", action_names=["S", "N", "E", "W", "in", "out"], actions="tools"
    )  # fmt: skip
    bare = gymnasium.make("Taxi-v4")
    _, info = bare.reset(seed=5)
    first = one.reset(Prompt("p", {"seed": 5}), 1)
    legal = [
        name
        for name, may in zip(["S", "N", "E", "W", "in", "out"], info["action_mask"], strict=True)
        if may
    ]
    assert text(first).endswith(f"Actions: {', '.join(legal)}")
    schema = first.tools[0]["function"]["parameters"]["properties"]["action"]
    assert schema == {"type": "string", "enum": legal} and "out" not in legal
    assert text(one.step(call("out"))) == f"'out' is not possible now. Actions: {', '.join(legal)}"
    seen = one.step(call(legal[0]))
    assert seen.messages[0]["role"] == "tool" and seen.reward == -1


@pytest.mark.parametrize(
    ("space", "said", "wrong"),
    [
        ("spaces.Discrete(3, start=-1)", "-1", ["2", "-2", "x", "", "1" * 30]),
        ("spaces.MultiDiscrete([3, 2])", "[2, 1]", ["[2, 2]", "[1.5, 1]", "[1]", "2", "[[1, 1]]", '["a", 1]']),
        ("spaces.MultiBinary(2)", "[0, 1]", ["[0, 2]", "{}", "[" * 5000]),
        ("spaces.Box(-1, 1, (2, 1))", "[[0.5], [-1]]", ["[[0.5], [-2]]", "[[NaN], [0]]", "[[1e999], [0]]", "[0, 0]"]),
        ("spaces.Box(0, 255, (1,), np.uint8)", "[7]", ["[256]", "[-1]", "[7.5]", f"[{10**400}]"]),
        ("spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3))", '{"a": 1, "b": "xy"}', ['{"a": 1}', '{"a": true, "b": "x"}', '{"a": 1, "b": "long"}', "[]"]),
        ("spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])", "[1, [0.5]]", ["[1]", "[2, [0.5]]", "1"]),
    ],
)  # fmt: skip
def test_actions_of_each_space_are_parsed_and_invalid_ones_reported(
    space: str, said: str, wrong: list[str]
) -> None:
    one = built("worded:Shapes", arguments={"space": space}, turns=50)
    one.reset(Prompt("p", {}), 1)
    assert one.step(Action(said)).reward == 1
    assert one.step(Action(f"So: <action>{said}</action>")).reward == 1
    for reply in wrong:
        seen = one.step(Action(reply))
        assert seen.reward == 0 and len(text(seen)) > 20, (reply, text(seen))
    tools = built("worded:Shapes", arguments={"space": space}, actions="tools")
    offered = tools.reset(Prompt("p", {}), 1).tools[0]["function"]
    assert offered["name"] == "act" and "action" in offered["parameters"]["properties"]


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (
            "image",
            r"observation\['near'\]\['picture'\] is Box\(0, 255, \(64, 64, 3\), uint8\), 12288 numbers",
        ),
        ("graph", r"observation is Graph\(Discrete\(3\), None\)"),
        ("picture to draw", r"actions that cannot be text: Box\(0.0, 1.0, \(64, 64\), float32\)"),
        ("old", "has no observation_space of Gymnasium"),
    ],
)
def test_what_cannot_be_text_is_refused_with_its_space(does: str, told: str) -> None:
    with pytest.raises(PreflightError, match=told):
        built("worded:Hostile", arguments={"does": does})


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"id": "Nothing-v7"}, "Nothing"),
        ({"id": "no_such_module:Nothing"}, "No module named 'no_such_module'"),
        ({"id": "Blackjack-v1", "arguments": {"cards": 3}}, "does not take these arguments"),
        ({"id": "Blackjack-v1", "action_names": ["stick"]}, "action_names has 1 names"),
        ({"id": "Blackjack-v1", "fields": ["hand"]}, "has no field 'hand'"),
        ({"id": "worded:Rooms", "observations": "render", "arguments": {}}, "does not take these arguments"),
        ({"id": "Blackjack-v1", "observations": "render"}, "does not render text"),
        ({"id": "worded:Shapes", "arguments": {"space": "spaces.Box(0, 1)"}, "legal_actions": "x"}, "is for Discrete"),
    ],
)  # fmt: skip
def test_mistakes_are_named(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(PreflightError, match=told):
        built(**keys)


def test_a_prompt_that_has_no_seed_is_named() -> None:
    one = built("Blackjack-v1")
    for data in ({"seed": -1}, {"seed": True}, {"seed": "3"}, {"options": 3}):
        with pytest.raises(PromptError, match=r"prompt 'p': '(seed|options)' is"):
            one.reset(Prompt("p", data), 1)
    with pytest.raises(ValueError, match="'stick' twice"):
        GymnasiumConfig(id="Blackjack-v1", action_names=("stick", "Stick."))


async def failures(*does: str) -> list[tuple[str, str]]:
    """The error that a pool raises for each faulty environment."""
    found = []
    for one in does:
        table = {"use": "gymnasium", "id": "worded:Hostile", "arguments": {"does": one}}
        keys = EnvironmentKeys(environment=table, most_environments=1, step_deadline_s=0.5)
        pool = EnvironmentPool(keys, context("raas", NOWHERE))
        try:
            async with pool.episode() as environment:
                with pytest.raises(EnvironmentFailed) as caught:
                    await environment.reset(Prompt("p", {}), 1)
                    await environment.step(Action("1"))
        finally:
            await pool.close()
        found.append((caught.value.kind, caught.value.reason))
    return found


@pytest.mark.slow
def test_a_hostile_environment_fails_its_episode_and_says_how() -> None:
    told = {
        "old step": ("malformed", "gave a tuple of 4 from step"),
        "old reset": ("malformed", "gave str from reset"),
        "reward": ("malformed", "gave the reward 'much'"),
        "nan": ("malformed", "gave the reward nan"),
        "info": ("malformed", "returned info that is not a dict: None"),
        "observation": ("malformed", "gave an observation that is not text"),
        "large": ("malformed", "an array of 1000 numbers"),
        "hangs": ("timeout", "gave no answer within 0.5 s"),
        "raises": ("error", "raised RuntimeError: no more"),
    }
    for (kind, reason), expected in zip(asyncio.run(failures(*told)), told.values(), strict=True):
        assert kind == expected[0] and expected[1] in reason, (kind, reason)


def test_seeds_of_the_splits_are_apart_and_all_are_32_bits() -> None:
    def seeds(**keys: Any) -> list[int]:
        source = GymnasiumSeeds(GymnasiumSeedsConfig(**keys), context("dataflow", NOWHERE))
        return [source[index].data["seed"] for index in range(len(source))]

    train, held_out = seeds(size=300, seed=1), seeds(size=80, seed=1, split="held_out")
    assert len(set(train)) == 300 and not set(train) & set(held_out)
    assert not set(seeds(size=300, seed=2)) & set(held_out)
    assert all(0 <= seed < 2**31 for seed in train)
