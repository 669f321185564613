"""Policies and frozen engines play roles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_model import QWEN

from astraflow_contrib_environment.config import RolesConfig
from astraflow_contrib_environment.team import TeamWorkflow
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.types import Prompt, Trajectory
from astraflow_testing.conformance.subject import context
from astraflow_testing.scripted_policies import ScriptedPolicies

DEBATE = {"use": "played_environments:Debate"}
PROMPT = Prompt("one", {"prompt": "tea"})


def played(
    folder: Path,
    says: dict[str, Any],
    frozen: tuple[str, ...] = (),
    prompt: Prompt = PROMPT,
    **keys: Any,
) -> tuple[Trajectory, ScriptedPolicies]:
    names = tuple(name for name in says if name not in frozen)
    policies = ScriptedPolicies(names, frozen, says, tokenizer=QWEN)
    config = RolesConfig(environment=keys.pop("environment", DEBATE), **keys)
    playing = TeamWorkflow(config, context("raas", folder, policies=names, frozen=frozen))
    trajectory = asyncio.run(playing.run_episode(policies.engines(), prompt))
    assert isinstance(trajectory, Trajectory)
    return trajectory, policies


def test_each_role_has_its_own_conversation_and_reward(tmp_path: Path) -> None:
    says = {"a": ["yes", "still yes"], "b": ["no", "still no"], "j": ["pro"]}
    roles = {"pro": "a", "con": "b", "judge": "j"}
    trajectory, policies = played(tmp_path, says, frozen=("j",), roles=roles)
    assert trajectory.rewards == {"a": 1.0, "b": 0.25}
    assert [s.policy for s in trajectory.sequences] == ["a", "b"]
    assert [s.reward for s in trajectory.sequences] == [None, None]
    assert [list((s.turn_rewards or {}).values()) for s in trajectory.sequences] == [
        [0.0, 1.0], [0.0, 0.25],
    ]  # fmt: skip
    assert [each.policy for each in policies.asked] == ["a", "b", "a", "b", "j"]
    assert policies.asked[2].text.endswith("user\ncon: no\nassistant\n")
    assert "still yes" in policies.asked[4].text and "user\npro: yes" in policies.asked[3].text
    assert [each.policy for each in trajectory.completions] == ["a", "b", "a", "b"]


def test_a_policy_that_plays_against_itself_is_rewarded_by_role(tmp_path: Path) -> None:
    # Both sides send the same text, so that only their conversations differ.
    says = {"p": ["yes", "yes", "yes", "yes", "con"]}
    trajectory, _ = played(tmp_path, says)
    assert [s.reward for s in trajectory.sequences] == [0.0, 1.25, 0.0]
    assert trajectory.rewards == {"p": 1.25}
    assert [int(s.loss_mask.sum()) for s in trajectory.sequences] == [8, 8, 4]
    for sequence in trajectory.sequences:
        assert np.isfinite(sequence.logprobs).all() and sequence.turn_rewards is not None


def test_an_episode_without_a_turn_of_a_trained_policy_has_failed(tmp_path: Path) -> None:
    roles = {"pro": "f", "con": "f", "judge": "f"}
    says = {"p": [], "f": ["yes", "yes", "yes", "yes", "con"]}
    with pytest.raises(WorkflowError, match=r"'one': no policy that is trained had a turn.* f"):
        played(tmp_path, says, frozen=("f",), roles=roles)


def test_an_episode_that_frozen_players_end_before_a_policy_has_a_turn_is_rejected(
    tmp_path: Path,
) -> None:
    policies = ScriptedPolicies(("p",), ("f",), {"p": [], "f": ["resign"]}, tokenizer=QWEN)
    config = RolesConfig(environment=DEBATE, roles={"pro": "f"}, policy="p")
    playing = TeamWorkflow(config, context("raas", tmp_path, policies=("p",), frozen=("f",)))
    assert asyncio.run(playing.run_episode(policies.engines(), PROMPT)) is None


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"roles": {"pro": "x"}},
            "role 'pro' is played by 'x', which is not in the run, which has",
        ),
        ({"policy": "x"}, "policy 'x' is not in the run"),
        ({"environment": {"use": "played_environments:Echo"}}, "has one role; use the workflow"),
        ({"roles": {"clerk": "a"}, "policy": "a"}, "has no role 'clerk'; its roles are pro, con"),
        ({"roles": {"pro": "a", "con": "b"}}, "has a role 'judge' without a policy"),
    ],
)
def test_roles_that_do_not_fit_are_refused(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(PreflightError, match=says):
        played(tmp_path, {"a": [], "b": []}, **keys)
