"""The examples that play environments of other projects, with a table in the place of a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from astraflow_testing.runs import EndedCommand, User

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TABLE = (
    "engine={ use = 'astraflow_testing.table:TableEngine', context = 4096 }",
    "trainer={ use = 'astraflow_testing.table:TableTrainer' }",
    "algorithm={ use = 'astraflow_testing.table:TableAlgorithm' }",
    "data=[]",
    "batch_sequences=16",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(user: User, example: str, *policies: str, overrides: tuple[str, ...] = ()) -> EndedCommand:
    tables = [f"policies.{policy}.{key}" for policy in policies for key in TABLE]
    given = ["run.steps=1", "run.group_size=4", "workflow.most_environments=2", *tables, *overrides]
    arguments = [part for override in given for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / example, *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 1 and ended.summary["failed"] == 0, ended.summary
    assert user.left_running() == []
    return ended


def test_an_environment_of_gymnasium_is_played(user: User) -> None:
    ended = run(user, "gymnasium.toml", "player", overrides=("eval.sets.held_out.size=4",))
    assert "illegal_actions" in ended.text and ended.summary["tokens_trained"] > 0


def test_a_game_of_textarena_is_played_against_an_older_version(user: User) -> None:
    model = "model = 'tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1&context=4096&alphabet="
    (alphabet,) = set(re.findall('alphabet=([^"]+)', (EXAMPLES / "textarena.toml").read_text()))
    keys = "follows = 'player', behind = 2, context = 4096"
    opponent = f"{{ use = 'astraflow_testing.table:TableEngine', {model}{alphabet}', {keys} }}"
    overrides = (f"engines.opponent={opponent}", "raas.max_concurrent_episodes=8")
    overrides += (f"policies.player.{model.replace(' = ', '=', 1)}{alphabet}'",)
    ended = run(user, "textarena.toml", "player", overrides=overrides)
    assert "lost_by_illegal_move" in ended.text and "player_1_reward" in ended.text
