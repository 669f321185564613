"""Every example does what its head says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from astraflow_testing.runs import EndedCommand, User

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
BOTH = ("solver", "verifier")
TABLE = (
    "engine={ use = 'astraflow_testing.table:TableEngine' }",
    "trainer={ use = 'astraflow_testing.table:TableTrainer' }",
    "algorithm={ use = 'astraflow_testing.table:TableAlgorithm' }",
    "model=tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1",
    "batch_sequences=64",
)
"""Of a policy without a deep learning framework."""


def learned(ended: EndedCommand) -> None:
    summary = ended.summary
    assert summary["eval_first"] <= 0.2, summary
    assert summary["eval_last"] >= 0.9, summary
    assert summary["reward_last"] > summary["reward_first"] + 0.5, summary
    assert summary["max_staleness_seen"] <= summary["max_staleness_allowed"]
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0, summary


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("heavy_imports")
def test_the_quickstart_learns(user: User) -> None:
    del user.environment["ASTRAFLOW_CURVES"]
    ended = user.astraflow("run", EXAMPLES / "quickstart.toml", deadline_s=380)
    assert ended.exit_code == 0, ended.text
    learned(ended)
    assert ended.summary["steps"] == ended.summary["versions"] == 100
    assert list(ended.run_directory.glob("*.png"))
    assert (ended.run_directory / "models" / "solver" / "model.safetensors").exists()
    assert user.left_running() == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("heavy_imports")
def test_two_policies_train_for_a_few_steps(user: User) -> None:
    """The solver as the example has it, the verifier, whose tables say the same, without a deep learning framework."""
    overrides = [
        "run.steps=2", "raas.replicas=1", "eval.sets.held_out.size=8", "policies.solver.batch_sequences=32",
        *(f"policies.verifier.{key}" for key in TABLE),
    ]  # fmt: skip
    two_policies(user, 2, *overrides)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_both_policies_learn(user: User) -> None:
    """As the example says, with tables instead of models: each policy has its own trainer, buffer and weights."""
    overrides = ["run.steps=40", "prompts.digits=2", "eval.sets.held_out.digits=2"]
    overrides += ["sampling.max_tokens=4", "raas.replicas=1"]
    for name in BOTH:
        overrides += [f"policies.{name}.{key}" for key in TABLE]
    policies = two_policies(user, 40, *overrides)
    for name, policy in policies.items():
        assert policy["reward_last"] > policy["reward_first"] + 0.2, (name, policy)


def two_policies(user: User, steps: int, *overrides: str) -> dict[str, Any]:
    """Run the example; what its summary says of each policy."""
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / "two_policies.toml", *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    policies: dict[str, Any] = ended.summary["policies"]
    assert set(policies) == set(BOTH)
    for name, policy in policies.items():
        assert policy["version"] == ended.summary["steps"] == steps
        assert (ended.run_directory / "models" / name / "model.safetensors").exists()
    return policies


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_plays_the_episodes(user: User) -> None:
    played = EXAMPLES.parent / "contrib" / "agent" / "tests"
    overrides = [
        "run.steps=3",
        "workflow.target=played_agents:without_reward",
        f"workflow.folder={played}",
        "eval.sets.held_out.size=8",
        *(f"policies.solver.{key}" for key in TABLE),
    ]
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / "agent.toml", *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 3 and "agent_calls 1.000" in ended.text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sums_are_compared_as_mathematics(user: User) -> None:
    """Two parts of one file, and a rubric whose parts are shown."""
    overrides = ["run.steps=3", *(f"policies.solver.{key}" for key in TABLE)]
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / "math.toml", *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 3 and ended.summary["failed"] == 0
    assert "not held out" not in ended.text
    assert re.search(r"episodes +right [\d.]+, form [\d.]+, length -[\d.]+", ended.text), ended.text
    assert user.left_running() == []


SPOKEN = quote("".join(map(chr, range(32, 127))) + "\n", safe="")
TABLE_TEAM = f"tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1&context=4096&alphabet={SPOKEN}"
TABLE_ENGINE = "astraflow_testing.table:TableEngine"
ROOMY = f"{{ use = '{TABLE_ENGINE}', context = 4096 }}"
TEAMS: dict[str, tuple[tuple[str, ...], dict[str, str], dict[str, float]]] = {
    "verified_solver": (BOTH, {}, {"attempts": 2, "accepted": 0, "verdicts_unread": 1}),
    "plan_and_solve": (("solver",), {}, {}),
    "recursive": (("solver",), {}, {"turns": 1, "depth": 0}),
    "selected_code": (("solver",), {}, {"chosen": 1, "choices_unread": 1}),
    "tested_code": (
        ("solver",),
        {"tester": ""},
        {"attempts": 1, "tests_read": 0, "tests_passed": 0},
    ),
    "self_play": (
        ("solver",),
        {"opponent": "follows = 'solver', behind = 1,", "judge": ""},
        {"wins": 0, "losses": 0},
    ),
}
"""Example -> its policies, its frozen engines with keys that they keep, and what the metrics of episodes are where models say nothing sensible."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.usefixtures("heavy_imports")
def test_a_team_trains_for_a_few_steps(user: User, name: str) -> None:
    policies, frozen, expected = TEAMS[name]
    steps = 8 if "opponent" in frozen else 3
    overrides = [f"run.steps={steps}", "run.group_size=4", "sampling.max_tokens=8", "eval.every=4"]
    for policy in policies:
        overrides += [f"policies.{policy}.{key}" for key in TABLE if not key.startswith("engine")]
        overrides += [f"policies.{policy}.engine={ROOMY}", f"policies.{policy}.batch_sequences=16"]
        overrides += [f"policies.{policy}.model={TABLE_TEAM}", f"policies.{policy}.data=[]"]
    for engine, kept in frozen.items():
        keys = f"{kept} model = '{TABLE_TEAM}', context = 4096"
        overrides.append(f"engines.{engine}={{ use = '{TABLE_ENGINE}', {keys} }}")
    if "tested" not in name and "selected" not in name:
        overrides.append("eval.sets.held_out.size=4")
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / f"{name}.toml", *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    summary = ended.summary
    assert summary["steps"] == steps and summary["failed"] == summary["lost"] == 0, summary
    lines = (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    last = [line for line in map(json.loads, lines) if line.get("policy") == policies[-1]][-1]
    means = {metric: value["mean"] for metric, value in last["episode_metrics"].items()}
    assert means == expected
    if "opponent" in frozen:
        log = (ended.run_directory / "logs" / "raas-0.log").read_text()
        first, *later = map(int, re.findall("'opponent' serves version (.*)", log))
        assert first == 0 and later and max(later) < steps, "an older version, and then a newer one"
    assert user.left_running() == []


@pytest.mark.turns(
    "examples/fsdp.toml",
    "plugins/trainers/fsdp/src/**/*.py",
    "libs/torch_training/src/**/*.py",
    "runtime/src/astraflow_runtime/trainer/**/*.py",
)
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("heavy_imports")
def test_two_ranks_train_for_a_few_steps(user: User) -> None:
    overrides = ["run.steps=4", "policies.solver.batch_sequences=64", "eval.sets.held_out.size=8"]
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", EXAMPLES / "fsdp.toml", *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    summary = ended.summary
    assert summary["versions"] == 4 and summary["tokens_trained"] > 0, summary
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0, summary
    (checkpoint,) = (ended.run_directory / "checkpoints" / "solver").iterdir()
    assert {"__0_0.distcp", "__1_0.distcp"} <= {file.name for file in checkpoint.iterdir()}
    assert (ended.run_directory / "models" / "solver" / "model.safetensors").exists()
    logs = [file.read_text() for file in (ended.run_directory / "logs").glob("trainer-solver*")]
    assert "each of 2 ranks publishes what it holds" in "".join(logs)
    assert user.left_running() == []
