"""Examples with a real backend, or an agent in an interpreter of its own, do what their heads say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from agent_clients.environment import CLIENTS, interpreter_with
from test_examples import EXAMPLES, TABLE

from astraflow_testing.runs import User, live_processes

pytestmark = [pytest.mark.backend, pytest.mark.slow]


@pytest.mark.turns(
    "examples/agent_service.toml",
    "examples/quickstart.toml",
    "examples/agent/*.py",
    "contrib/agent/src/**/*.py",
    "libs/gateway/src/**/*.py",
    "tests/agent_clients/environment.py",
    "tests/agent_clients/requirements.txt",
)
@pytest.mark.timeout(1200)
def test_an_agent_that_is_a_service_plays_the_episodes(user: User) -> None:
    command = [
        interpreter_with(CLIENTS),
        str(EXAMPLES / "agent" / "service.py"),
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            url = service.stdout.readline().strip()
            overrides = [
                "run.steps=3",
                f"workflow.url={url}",
                "eval.sets.held_out.size=8",
                *(f"policies.solver.{key}" for key in TABLE),
            ]
            arguments = [part for override in overrides for part in ("--set", override)]
            file = EXAMPLES / "agent_service.toml"
            ended = user.astraflow("run", file, *arguments, deadline_s=600)
        finally:
            service.kill()
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 3 and "agent_calls 1.000" in ended.text


@pytest.mark.turns(
    "examples/megatron.toml",
    "examples/quickstart.toml",
    "plugins/trainers/megatron/src/**/*.py",
    "runtime/src/astraflow_runtime/trainer/ranks/**/*.py",
)
@pytest.mark.timeout(600)
def test_megatron_trains_on_two_ranks_and_one_of_them_is_killed(user: User) -> None:
    """A few of the steps in which the example learns."""
    overrides = [
        "run.steps=8", "checkpoint.every=2", "policies.solver.batch_sequences=64",
        "eval.sets.held_out.size=8", "raas.replicas=1",
    ]  # fmt: skip
    arguments = [part for override in overrides for part in ("--set", override)]
    running = user.start("run", EXAMPLES / "megatron.toml", *arguments)
    directory = user.wait_for_steps(3, 200)
    (rank,) = [
        pid
        for pid in live_processes(user.marker)
        if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]
    os.kill(rank, signal.SIGKILL)
    ended = user.end(running, 380)
    assert ended.exit_code == 0, ended.text
    assert "rank 1 was killed by SIGKILL" in ended.text
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    made = [line for line in map(json.loads, lines) if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, 9))
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert ended.summary["lost"] == ended.summary["duplicated"] == 0
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"]
    last = directory / "checkpoints" / "solver" / "update-00000008"
    assert {file.name for file in last.glob("*.safetensors")} == {
        f"rank0000{rank}.safetensors" for rank in (0, 1)
    }
    assert (directory / "models" / "solver" / "model.safetensors").exists()
    assert user.left_running() == []


@pytest.mark.turns(
    "examples/vllm.toml",
    "examples/quickstart.toml",
    "plugins/engines/vllm/src/**/*.py",
    "libs/serving/src/**/*.py",
)
@pytest.mark.timeout(2400)
def test_vllm_trains_and_the_death_of_its_server_is_repaired(user: User) -> None:
    del user.environment["XDG_CACHE_HOME"]  # the environment is kept between runs
    name = "tests-vllm"
    made = user.astraflow("env", "create", name, "--plugin", "vllm", deadline_s=1500)
    assert made.exit_code == 0, made.text
    python = f"policies.solver.engine.python=env:{name}"
    # On a busy machine a server takes minutes to start again, and no episode shall end before that.
    patient = "run.episode_deadline_s=600"
    running = user.start("run", EXAMPLES / "vllm.toml", "--set", python, "--set", patient)
    user.wait_for_steps(5, 600)
    (server,) = [
        pid
        for pid in live_processes(user.marker)
        # Not our guard, whose arguments are the server's command.
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3]
        == [b"-m", b"vllm.entrypoints.cli.main"]
    ]
    os.kill(server, signal.SIGKILL)
    ended = user.end(running, 600)
    assert ended.exit_code == 0, ended.text
    summary = ended.summary
    assert summary["reward_last"] > summary["reward_first"] + 0.3, summary
    assert summary["max_staleness_seen"] <= summary["max_staleness_allowed"]
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0, summary
    assert user.left_running() == []
