"""Episodes that an environment plays in a process of another interpreter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_verifiers.config import VerifiersWorkflowConfig
from astraflow_contrib_verifiers.verifiers_worker.kinds import kind_of
from astraflow_contrib_verifiers.verifiers_worker.service import Spec
from astraflow_contrib_verifiers.workflow import VerifiersWorkflow
from astraflow_core.errors import EnvironmentFailed, PreflightError, WorkflowError
from astraflow_core.types import ComponentContext, Prompt, RunInfo, Sampling, Trajectory
from astraflow_testing.scripted_policies import ScriptedPolicies


def context(folder: Path) -> ComponentContext:
    run = RunInfo("r", 0, 1, 1, ("p", "q"), folder, ("judge",))
    return ComponentContext(run, "raas", "", 0, folder / "workflow")


def prompt(index: int = 3, **arguments: Any) -> Prompt:
    from stand_in_environment import StandIn

    environment = StandIn(Spec("sums", arguments))
    digest = environment.task(index).digest
    task = {
        "environment": "sums", "arguments": arguments, "split": "train", "index": index, "digest": digest,
        "roles": environment.roles,
    }  # fmt: skip
    return Prompt(f"sums-{index}", {"verifiers": task})


def played(folder: Path, python: str, *prompts: Prompt, **keys: Any) -> list[Any]:
    """The trajectory of each prompt, or what it raised; one worker plays all of them."""

    async def run() -> list[Any]:
        policies = ScriptedPolicies(["p", "q"], ["judge"], sampling=Sampling(max_tokens=60))
        workflow = VerifiersWorkflow(
            VerifiersWorkflowConfig(python=python, **keys), context(folder)
        )
        plays = (workflow.run_episode(policies.engines(), each) for each in prompts)
        return await asyncio.gather(*plays, return_exceptions=True)

    return asyncio.run(run())


def test_rewards_and_metrics_are_those_of_the_environment(tmp_path: Path, python: str) -> None:
    two = prompt(roles=["solver", "critic"])
    (alone,) = played(tmp_path, python, prompt(), check_tokens=True)
    (both,) = played(tmp_path, python, two, roles={"critic": "judge"})
    assert isinstance(alone, Trajectory), alone
    assert alone.rewards == {"p": float(len(alone.completions[0].text))}
    assert alone.metrics["turns"] == 2 and alone.metrics["agent_calls"] == 2
    assert "odd" not in alone.metrics
    assert isinstance(both, Trajectory), both
    assert {each.policy for each in both.sequences} == {"p"}, "the judge is frozen"
    assert {each.reward for each in both.sequences} == set(both.rewards.values())
    assert both.metrics["solver.turns"] == 2 and both.metrics["agent_calls"] == 4


def test_a_failure_has_its_kind_and_is_no_reward(tmp_path: Path, python: str) -> None:
    does = ("raises", "exits", "refuses", "nan", "words", "array", "odd", "untrained", "lies")
    other = prompt(index=2)
    other.data["verifiers"]["digest"] = "0"
    found = played(
        tmp_path, python, *(prompt(does=each) for each in does), other, prompt(), check_tokens=True
    )
    assert isinstance(found.pop(), Trajectory), "the others do not touch it"
    says = (
        ("environment", "prompt 'sums-3': KeyError: 'no such door'"),
        ("environment", "SystemExit: 3"),
        ("tool_call_error", "the box is gone"),
        ("reward", "the reward of role 'agent' is nan; expected a finite number"),
        ("reward", "the reward of role 'agent' is 'good'"),
        ("reward", "the reward of role 'agent' is array([1., 1.])"),
        ("reward", "the metric 'odd' of role 'agent' is inf"),
        ("nothing_sampled", "sampled nothing that is trained"),
        ("tokens", "other log-probs of role 'agent'"),
        ("other_task", "install the same version"),
    )
    for error, (kind, text) in zip(found, says, strict=True):
        assert isinstance(error, EnvironmentFailed), error
        assert error.kind == kind and text in error.reason


def test_an_episode_that_takes_too_much_memory_fails_alone(tmp_path: Path, python: str) -> None:
    leaking, other = played(tmp_path, python, prompt(does="leaks"), prompt(), worker_memory_mb=1000)
    assert isinstance(leaking, EnvironmentFailed) and "MemoryError" in leaking.reason
    assert isinstance(other, Trajectory), "it plays in the same process"


def test_a_worker_that_dies_or_blocks_is_replaced(tmp_path: Path, python: str) -> None:
    async def run() -> None:
        policies = ScriptedPolicies(["p", "q"])
        config = VerifiersWorkflowConfig(python=python, deadline_s=3)
        workflow = VerifiersWorkflow(config, context(tmp_path))

        async def kind_of_failure(does: str) -> str:
            with pytest.raises(EnvironmentFailed) as failed:
                await workflow.run_episode(policies.engines(), prompt(does=does))
            return failed.value.kind

        assert await kind_of_failure("dies") == "worker"
        assert await kind_of_failure("blocks") == "timeout"
        assert await workflow.run_episode(policies.engines(), prompt())

    asyncio.run(run())


def test_an_episode_that_misses_its_deadline_is_cancelled(tmp_path: Path, python: str) -> None:
    hanging = prompt(does="hangs", pids=str(tmp_path / "pids"))
    (error,) = played(tmp_path, python, hanging, deadline_s=2)
    assert isinstance(error, EnvironmentFailed) and error.kind == "timeout"
    assert (tmp_path / "cancelled").exists(), "the environment could clean up"


@pytest.mark.slow
def test_nothing_is_left_when_the_raas_is_killed(tmp_path: Path, python: str) -> None:
    pids = tmp_path / "pids"
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from test_workflow import played, prompt
played(Path({str(tmp_path)!r}), {python!r}, prompt(does="hangs", pids={str(pids)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as raas:
        while not pids.exists() or not pids.read_text().endswith("\n"):
            assert raas.poll() is None
            time.sleep(0.05)
        left = [*map(int, pids.read_text().split())]
        raas.kill()
    while any(map(_runs, left)):
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_what_does_not_fit_the_run_is_refused(tmp_path: Path, python: str) -> None:
    for keys in ({"roles": {"a": "x"}}, {"policy": "x"}, {"tokenizers": {"x": "/f"}}):
        config = VerifiersWorkflowConfig(python=python, **keys)  # type: ignore[arg-type]
        with pytest.raises(
            PreflightError, match="'x', which is not in the run; it has p, q, judge"
        ):
            VerifiersWorkflow(config, context(tmp_path))
    with pytest.raises(PreflightError, match="'/no/python', which is not an interpreter here"):
        VerifiersWorkflow(VerifiersWorkflowConfig(python="/no/python"), context(tmp_path))
    (foreign,) = played(tmp_path, python, Prompt("1", {}))
    (unknown,) = played(tmp_path, python, prompt(), roles={"judge": "q"})
    assert isinstance(foreign, WorkflowError) and "not of the prompt source" in str(foreign)
    assert "roles names judge; the roles of sums are agent" in str(unknown)


def test_names_of_errors_are_words_to_count_by() -> None:
    assert kind_of("TaskError") == "task_error" and kind_of("a.b-C") == "a_b_c"
    assert len(kind_of("X" * 99)) == 32
