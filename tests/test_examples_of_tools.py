"""The examples in which policies call tools, write programs and play environments, with a table in the place of a model."""

from __future__ import annotations

import string
from pathlib import Path
from urllib.parse import quote

import pytest

from astraflow_testing.runs import EndedCommand, User

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TABLE = (
    "engine={ use = 'astraflow_testing.table:TableEngine', context = 4096 }",
    "trainer={ use = 'astraflow_testing.table:TableTrainer' }",
    "algorithm={ use = 'astraflow_testing.table:TableAlgorithm' }",
    "data=[]",
    "batch_sequences=32",
)
MODEL = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
PRINTABLE = quote(
    " $" + string.ascii_letters + string.digits + "!\"#%&'()*+,-./:;<=>?@[]^_`{|}~\n\\"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def about(example: str, *packages: str) -> pytest.MarkDecorator:
    """What a run of an example with components of ``packages`` is about, beside what all runs are."""
    return pytest.mark.turns(
        f"examples/{example}.toml",
        "examples/household.toml",
        "examples/smollm2.toml",
        *(f"{package}/src/**/*.py" for package in packages),
        "contrib/environment/src/**/*.py",
        "libs/environments/src/**/*.py",
        "libs/gateway/src/**/*.py",
    )


def run(user: User, example: str, *policies: str, overrides: tuple[str, ...] = ()) -> EndedCommand:
    tables = [f"policies.{policy}.{key}" for policy in policies for key in TABLE]
    given = ["run.steps=2", "run.group_size=4", "raas.replicas=1", *tables, *overrides]
    arguments = [part for override in given for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / example, *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 2 and ended.summary["failed"] == 0, ended.summary
    return ended


def test_an_environment_is_played(user: User) -> None:
    ended = run(user, "environment.toml", "player", overrides=("eval.sets.held_out.size=4",))
    assert "prompts_continued" in ended.text and "won" in ended.text


def test_a_team_plays(user: User) -> None:
    ended = run(user, "team.toml", "teller", "guesser")
    assert set(ended.summary["policies"]) == {"teller", "guesser"}
    assert "right" in ended.text and ended.summary["tokens_trained"] > 0


@about("tools", "contrib/tools")
def test_a_policy_is_offered_tools(user: User) -> None:
    overrides = (
        f"policies.solver.model={MODEL}&context=4096&alphabet={PRINTABLE}",
        "prompts={ use = 'digits', operation = 'complement', digits = 3 }",
        "eval.sets.held_out={ use = 'digits', operation = 'complement', digits = 3, size = 4, split = 'held_out' }",
        "sampling.max_tokens=8",
        "raas.max_concurrent_episodes=32",
    )
    ended = run(user, "tools.toml", "solver", overrides=overrides)
    assert "agent_calls 1.000" in ended.text


@about("code", "contrib/code", "libs/sandbox")
def test_programs_are_tested_in_the_sandbox(user: User) -> None:
    overrides = (
        f"policies.solver.model={MODEL}&context=4096&alphabet={PRINTABLE}",
        "sampling.max_tokens=8",
        "raas.max_concurrent_episodes=32",
    )
    ended = run(user, "code.toml", "solver", overrides=overrides)
    assert ended.summary["eval_last"] == 0 and ended.summary["tokens_trained"] > 0, ended.summary
    assert user.left_running() == []


@about("sql", "contrib/sql")
def test_sql_is_written(user: User) -> None:
    overrides = ("eval.sets.held_out.size=4", "raas.max_concurrent_episodes=16")
    ended = run(user, "sql.toml", "solver", overrides=overrides)
    assert "executed" in ended.text and ended.summary["tokens_trained"] > 0


@about("mcp", "contrib/tools")
def test_a_server_of_the_model_context_protocol_is_the_world(user: User) -> None:
    ended = run(user, "mcp.toml", "walker", overrides=("workflow.most_environments=1",))
    assert "tool_calls 3.000" in ended.text and "tool_errors 0.000" in ended.text
    assert user.left_running() == []


@about("harbor", "contrib/harbor", "libs/sandbox")
def test_tasks_in_a_shell_are_played(user: User) -> None:
    overrides = ("workflow.most_environments=2", "run.group_size=2")
    ended = run(user, "harbor.toml", "solver", overrides=overrides)
    assert "commands 1.000" in ended.text and "finished 1.000" in ended.text
    assert user.left_running() == []


# A table that knows no question is to play worlds of language through all services.
WORLDS = {
    "search_qa": ("contrib/search_qa", "searches"),
    "shop": ("contrib/shop", "bought"),
    "adventure": ("contrib/text_games", "score"),
    "household": ("contrib/household", "moves"),
}
"""Example → its package and a metric of it."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=about(name, WORLDS[name][0])) for name in WORLDS]
)
def test_a_world_of_language_is_played(user: User, name: str) -> None:
    overrides = (
        f"policies.player.model={MODEL}&context=16384&alphabet={PRINTABLE}",
        "policies.player.engine={ use = 'astraflow_testing.table:TableEngine', context = 16384 }",
        "workflow.environment.turns=2",
        "sampling.max_tokens=4",
    )
    ended = run(user, f"{name}.toml", "player", overrides=overrides)
    assert WORLDS[name][1] in ended.text and ended.summary["tokens_trained"] > 0, ended.text
    assert user.left_running() == []
