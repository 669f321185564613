"""A policy plays environments."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_model import QWEN

from astraflow_contrib_environment.config import EnvironmentConfig
from astraflow_contrib_environment.workflow import EnvironmentWorkflow
from astraflow_core.errors import EnvironmentFailed, PreflightError, PromptError
from astraflow_core.types import Prompt, Sampling, Trajectory
from astraflow_testing.conformance.subject import context
from astraflow_testing.images.pictures import picture
from astraflow_testing.scripted_policies import PairsTokenizer, ScriptedPolicies, Truncated
from astraflow_wire.images.model import ImageModel

WITH_PICTURES = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ECHO = {"use": "played_environments:Echo"}
LEVEL = {"squares": 5, "player": 0, "key": 1, "door": 2, "turns": 6}


def workflow(folder: Path, policies: tuple[str, ...] = ("p",), **keys: Any) -> EnvironmentWorkflow:
    keys.setdefault("environment", ECHO)
    return EnvironmentWorkflow(
        EnvironmentConfig(**keys), context("raas", folder, policies=policies)
    )


def one(folder: Path, *said: Any, data: Any = None, **keys: Any) -> tuple[Trajectory, list[str]]:
    """The trajectory, and the text of each prompt."""
    policies = ScriptedPolicies(
        ["p"], says={"p": said}, sampling=Sampling(max_tokens=200), tokenizer=QWEN
    )
    playing = workflow(folder, **keys)
    prompt = Prompt("one", data or {})
    trajectory = asyncio.run(playing.run_episode(policies.engines(), prompt))
    assert isinstance(trajectory, Trajectory)
    return trajectory, [QWEN.decode(each.prompt, skip_special=False) for each in policies.asked]


def ends(trajectory: Trajectory) -> list[int]:
    (sequence,) = trajectory.sequences
    return np.flatnonzero(np.diff(sequence.loss_mask.astype(int), append=0) == -1).tolist()


def test_rewards_go_to_the_turns_and_their_sum_to_the_trajectory(tmp_path: Path) -> None:
    trajectory, shown = one(tmp_path, "ab", "abcd", "won", data={"turns": 9})
    assert trajectory.rewards == {"p": 9.0}
    (sequence,) = trajectory.sequences
    places = ends(trajectory)
    assert sequence.turn_rewards == dict(zip(places, [2.0, 4.0, 3.0], strict=True))
    assert sequence.turn_states == {places[0]: "begin", places[2]: "turn 2"}
    assert "<|im_start|>user\nabcd False<|im_end|>" in shown[2]
    assert trajectory.metrics == {
        "agent_calls": 3, "agent_tokens": 12, "prompts_continued": 2,
        "letters": 3, "finished": 1, "turns": 3,
    }  # fmt: skip


def test_an_observation_may_show_images(tmp_path: Path) -> None:
    """In the first turn as a user's message, then as the result of a tool."""
    tokenizer = PairsTokenizer(WITH_PICTURES, "<end>", ["<image>"])
    model = ImageModel(token=int(tokenizer.encode("<image>")[0]), length=2)
    files = [picture(1), picture(2)]
    urls = ["data:image/png;base64," + base64.b64encode(file).decode() for file in files]
    policies = ScriptedPolicies(["p"], says={"p": ["a", "b"]}, tokenizer=tokenizer)
    policies.handles["p"].images = model
    playing = workflow(tmp_path, environment={"use": "played_environments:Gallery"})
    prompt = Prompt("one", {"pictures": urls})
    trajectory = asyncio.run(playing.run_episode(policies.engines(), prompt))
    assert isinstance(trajectory, Trajectory) and trajectory.rewards == {"p": 1.0}
    (sequence,) = trajectory.sequences
    assert [bytes(image.data) for image in sequence.images] == files
    places = [place for image in sequence.images for place in range(image.start, image.end)]
    assert np.flatnonzero(sequence.tokens == model.token).tolist() == places
    assert not sequence.loss_mask[places].any()


def test_later_turns_count_less_with_a_discount(tmp_path: Path) -> None:
    trajectory, _ = one(tmp_path, "ab", "abcd", data={"turns": 2}, discount=0.5)
    assert trajectory.rewards == {"p": 2 + 0.5 * 4}
    assert list((trajectory.sequences[0].turn_rewards or {}).values()) == [2.0, 4.0]
    assert trajectory.metrics["finished"] == 0


def test_the_run_can_reward_what_the_environment_played(tmp_path: Path) -> None:
    trajectory, _ = one(tmp_path, "ab", "won", data={"turns": 9}, rewarded_by="run")
    assert trajectory.rewards == {}  # so that the RaaS asks the reward component
    assert list((trajectory.sequences[0].turn_rewards or {}).values()) == [2.0, 3.0]


def test_tools_of_an_environment_are_called_in_the_form_of_the_model(tmp_path: Path) -> None:
    calls = [("move", {"direction": "right"}), ("take", {}), ("fly", {}), ("move", "?")]
    said = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    ]
    environment = {"use": "key_door", "actions": "tools"}
    data = {"level": {**LEVEL, "turns": 4}}
    trajectory, shown = one(tmp_path, *said, data=data, environment=environment)
    assert '"name": "move"' in shown[0] and "# Tools" in shown[0]
    assert "<tool_response>\nYou have the key. .@d.. . Turns left: 2." in shown[2]
    assert "No such call of 'fly'" in shown[3]
    assert trajectory.rewards == {"p": 0.5} and trajectory.metrics["won"] == 0


def test_a_failure_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="the line is dead") as failed:
        one(tmp_path, "ab", "fail")
    assert failed.value.kind == "network"


def test_an_episode_that_is_cut_off_keeps_what_it_earned(tmp_path: Path) -> None:
    trajectory, shown = one(tmp_path, "ab", "abc", data={"turns": 9}, max_turns=2)
    assert trajectory.rewards == {"p": 5.0} and trajectory.metrics["cut_by_budget"] == 1
    trajectory, shown = one(tmp_path, Truncated("ab"), "won")
    assert "ab True" in shown[1]
    with pytest.raises(PromptError, match="prompt 'one' leaves no room for a reply"):
        one(tmp_path, data={"prompt": "x" * (1 << 21)})


def test_episodes_of_a_prompt_have_one_seed_and_those_of_another_one_another(
    tmp_path: Path,
) -> None:
    async def first(prompt: str) -> str:
        policies = ScriptedPolicies(["p"], says=lambda *_: "won", tokenizer=QWEN)
        await playing.run_episode(policies.engines(), Prompt(prompt))
        return policies.asked[0].text

    async def play() -> list[str]:
        return [await first(name) for name in ("a", "a", "b")]

    playing = workflow(tmp_path)
    one_seed, same, other = asyncio.run(play())
    assert one_seed == same != other


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"policy": "q"}, "policy 'q' is not in the run, which has p"),
        ({"policies": ("p", "q")}, "say which in workflow.policy"),
        ({"environment": {"use": "played_environments:Debate"}}, "several roles; use the workflow"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(
    tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(PreflightError, match=says):
        workflow(tmp_path, **keys)
