"""Functions and commands that play episodes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp.web
import numpy as np
import pytest

from astraflow_contrib_agent.agents import CommandAgent
from astraflow_contrib_agent.config import AgentConfig
from astraflow_contrib_agent.workflow import AgentWorkflow
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.types import ComponentContext, Prompt, RunInfo, Sampling, Trajectory
from astraflow_testing.scripted_policies import FailedAnswer, ScriptedPolicies
from astraflow_testing.small_disk import largest_file

HERE = Path(__file__).parent


def context(folder: Path, policies: tuple[str, ...] = ("p",)) -> ComponentContext:
    run = RunInfo("r", 0, 1, 1, policies, folder)
    return ComponentContext(run, "raas", "", 0, folder / "workflow")


def played(
    folder: Path,
    says: Any,
    data: dict[str, Any] | None = None,
    episodes: int = 1,
    **keys: Any,
) -> list[Trajectory | BaseException]:
    """The trajectories of ``episodes`` at once, or what they raise."""

    async def run() -> Any:
        policies = ScriptedPolicies(["p"], says=says, sampling=Sampling(max_tokens=60))
        if "target" in keys:
            keys.setdefault("folder", HERE)
        workflow = AgentWorkflow(AgentConfig(**keys), context(folder))
        prompt = Prompt("one", {"prompt": "a door", **(data or {})})
        plays = [workflow.run_episode(policies.engines(), prompt) for _ in range(episodes)]
        return await asyncio.gather(*plays, return_exceptions=True)

    found: list[Trajectory | BaseException] = asyncio.run(run())
    return found


def one(folder: Path, says: Any, data: dict[str, Any] | None = None, **keys: Any) -> Trajectory:
    (found,) = played(folder, says, data, **keys)
    if isinstance(found, BaseException):
        raise found
    return found


def answer(policy: str, text: str) -> str:
    return "yes" if "sure?" in text else "a key"


def test_a_function_plays_and_rewards(tmp_path: Path) -> None:
    trajectories = played(tmp_path, answer, target="played_agents:two_turns", episodes=8)
    for trajectory in trajectories:
        assert isinstance(trajectory, Trajectory), trajectory
        assert trajectory.rewards == {"p": 5.0}
        assert [each.text for each in trajectory.completions] == ["a key", "yes"]
        assert trajectory.metrics["agent_calls"] == 2
        assert sum(int(each.loss_mask.sum()) for each in trajectory.sequences) == 10


def test_an_agent_credits_its_turns(tmp_path: Path) -> None:
    said = iter(["no", "a key", "yes"])
    trajectory = one(tmp_path, lambda *_: next(said), target="played_agents:credits_turns")
    assert trajectory.rewards == {"p": 1.0}
    found = {}
    for sequence, completion in zip(trajectory.sequences, trajectory.completions, strict=True):
        last = len(sequence.tokens) - 1
        assert np.flatnonzero(sequence.loss_mask)[-1] == last
        rewards, states = sequence.turn_rewards or {}, sequence.turn_states or {}
        assert set(rewards) | set(states) <= {last}
        found[completion.text] = rewards.get(last), states.get(last)
    assert found == {"no": (None, None), "a key": (0.25, "door"), "yes": (0.75, None)}


@pytest.mark.parametrize(
    ("also", "says"),
    [
        ({"turns": [{"id": "chatcmpl-1"}]}, "names turn 'chatcmpl-1', choice 0, which this episode does not have"),
        ({"turns": [{"reward": 1}]}, "missing required field `id`"),
        ({"turns": [{"id": "a", "points": 1}]}, "unknown field `points`"),
        ({"rewards": {"p": 1}}, "both reward and rewards"),
        ({"score": 1}, "unknown fields score"),
    ],
)  # fmt: skip
def test_a_bad_report_of_turns_says_what_is_expected(
    tmp_path: Path, also: dict[str, Any], says: str
) -> None:
    with pytest.raises(WorkflowError, match=f"agent played_agents:credits_turns .*{says}"):
        one(tmp_path, answer, {"also": also}, target="played_agents:credits_turns")


@pytest.mark.parametrize(("name", "rewards"), [("in_a_loop", {"p": 0.5}), ("without_reward", {})])
def test_what_a_function_returns(tmp_path: Path, name: str, rewards: dict[str, float]) -> None:
    assert one(tmp_path, answer, target=f"played_agents:{name}").rewards == rewards


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("silent", "sampled nothing that is trained"),
        ("broken", "KeyError: 'no such door'"),
        ("dies", "ended without a result"),
        ("odd", "returned 'good'; expected a finite number"),
        ("missing", "cannot be imported"),
    ],
)
def test_an_agent_that_fails_is_no_reward_of_zero(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(WorkflowError, match=says):
        one(tmp_path, answer, target=f"played_agents:{name}")


def test_the_failure_of_an_engine_is_that_of_the_episode(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="out of memory"):
        one(tmp_path, lambda *_: FailedAnswer("out of memory"), target="played_agents:two_turns")


def test_nothing_is_left_of_an_agent_that_does_not_end(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(WorkflowError, match=r"ended after 2 s \(\[workflow\] deadline_s\)"):
        one(
            tmp_path, answer, {"pids": str(pids)},
            target="played_agents:endless", deadline_s=2,
        )  # fmt: skip
    agent, child = map(int, pids.read_text().split())
    assert not _runs(agent)
    assert not _runs(child)


FUNCTION = f'FunctionAgent("played_agents:endless", Path({str(HERE)!r}), None)'
COMMAND = (
    f"CommandAgent([{sys.executable!r}, {str(HERE / 'played_agents.py')!r}], None, Path(folder))"
)


@pytest.mark.parametrize("agent", [FUNCTION, COMMAND], ids=["function", "command"])
def test_nothing_is_left_when_the_raas_is_killed(tmp_path: Path, agent: str) -> None:
    pids = tmp_path / "pids"
    code = f"""
import asyncio
from pathlib import Path
from astraflow_contrib_agent.agents import CommandAgent, FunctionAgent
folder = {str(tmp_path)!r}
agent = {agent}
task = dict(id="1", data={{"pids": {str(pids)!r}}}, base_url="http://x/v1", api_key="ep-{os.getpid()}", models=[])
asyncio.run(agent.play(task))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as raas:
        while not pids.exists() or not pids.read_text().endswith("\n"):
            assert raas.poll() is None
            time.sleep(0.05)
        left = [*map(int, pids.read_text().split())]
        raas.kill()
    while any(map(_runs, left)):
        time.sleep(0.05)


def test_a_reaper_that_dies_or_stops_is_replaced(tmp_path: Path) -> None:
    """The next one knows the episodes that were open."""
    code = """
import asyncio, os, signal, sys
from astraflow_wire.host.reaped_processes import ReapedProcesses
async def main():
    processes = ReapedProcesses()
    env = {"ASTRAFLOW_EPISODE": sys.argv[1]}
    start = asyncio.create_subprocess_exec
    async with processes.under(sys.argv[1]) as started:
        sleeper = await start("sleep", "600", env=env, start_new_session=True)
        os.kill(processes._reaper.pid, signal.SIGKILL)
        processes._reaper.wait()
        async with processes.under("another"):
            os.kill(processes._reaper.pid, signal.SIGSTOP)
            for number in range(10_000):
                processes._record("another", 0)
            print(sleeper.pid, flush=True)
            await asyncio.sleep(600)
asyncio.run(main())
"""
    command = [sys.executable, "-c", code, f"ep-reaped-{os.getpid()}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as raas:
        assert raas.stdout is not None
        sleeper = int(raas.stdout.readline())
        assert _runs(sleeper)
        raas.kill()
    while _runs(sleeper):
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


SCRIPT = f"""
import json, os, sys
sys.path.insert(0, {str(HERE)!r})
from types import SimpleNamespace
import played_agents
task = SimpleNamespace(**json.loads(sys.stdin.readline()))
assert os.environ["OPENAI_API_KEY"] == os.environ["ANTHROPIC_API_KEY"] == task.api_key
assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"] == task.base_url
assert not [name for name in os.environ if name.startswith("ASTRAFLOW_TOKEN")]
print("thinking " * 20_000)
said = played_agents.ask(task, task.data["prompt"])
"""


@pytest.mark.parametrize(
    ("end", "rewards"),
    [
        ('print(json.dumps({"reward": len(said)}))', {"p": 5.0}),
        ('print(json.dumps({"rewards": {"p": 2}}) + "\\n")', {"p": 2.0}),
        ('print("done")', {}),
        ('print("[" * 20_000)', {}),
    ],
)
def test_a_command_plays(
    tmp_path: Path, end: str, rewards: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    command = [sys.executable, "-c", SCRIPT + end]
    assert one(tmp_path, answer, command=command).rewards == rewards
    (output,) = (tmp_path / "workflow" / "outputs").iterdir()
    assert output.stat().st_size <= 1 << 16


def test_an_episode_does_not_fail_for_want_of_disk_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = CommandAgent(["noisy"], None, tmp_path / "outputs")
    with largest_file(0):
        agent._keep(b"said", b"")
        agent._keep(b"said", b"")
    assert [record.getMessage()[:46] for record in caplog.records] == [
        "no disk space to keep what agent noisy prints:"
    ]
    agent._keep(b"said", b"")
    assert (tmp_path / "outputs" / "2.txt").read_bytes() == b"said"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/no/such/program"], "cannot be started"),
        ([sys.executable, "-c", "raise SystemExit('no door')"], "python.* -c 'raise SystemExit.* ended with exit code 1\nno door"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "signal 9"),
        ([sys.executable, "-c", "import time; time.sleep(600)"], "agent .*time.sleep.* ended after 1 s"),
    ],
)  # fmt: skip
def test_a_command_that_fails_says_how(tmp_path: Path, command: list[str], says: str) -> None:
    with pytest.raises(WorkflowError, match=says):
        one(tmp_path, answer, command=command, deadline_s=1 if "sleep" in command[-1] else 60)


@asynccontextmanager
async def _service(answers: Callable[[Any], Any]) -> Any:
    async def handle(request: aiohttp.web.Request) -> aiohttp.web.Response:
        task = await request.json()
        async with aiohttp.ClientSession() as client:
            body = {"messages": [{"role": "user", "content": task["data"]["prompt"]}]}
            headers = {"authorization": f"Bearer {task['api_key']}"}
            url = f"{task['base_url']}/chat/completions"
            async with client.post(url, json=body, headers=headers) as response:
                assert response.status == 200
        return aiohttp.web.json_response(**answers(task))

    app = aiohttp.web.Application()
    app.router.add_post("/play", handle)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address,) = runner.addresses
    try:
        yield f"http://127.0.0.1:{address[1]}/play"
    finally:
        await runner.cleanup()


def _served(folder: Path, answers: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        policies = ScriptedPolicies(["p"], says=answer)
        async with _service(answers) as url:
            workflow = AgentWorkflow(AgentConfig(url=url), context(folder))
            return await workflow.run_episode(policies.engines(), Prompt("1", {"prompt": "a door"}))

    return asyncio.run(run())


def test_a_service_plays(tmp_path: Path) -> None:
    trajectory = _served(tmp_path, lambda task: {"data": {"reward": 3}})
    assert trajectory.rewards == {"p": 3.0}
    with pytest.raises(WorkflowError, match="answered 500"):
        _served(tmp_path, lambda task: {"data": {"why": "broken"}, "status": 500})
    with pytest.raises(WorkflowError, match=r"/play: its reply, .* has neither reward nor rewards"):
        _served(tmp_path, lambda task: {"data": {"score": 3}})
    dead = "agent http://127.0.0.1:9/play cannot be reached: Connection refused; start the service"
    with pytest.raises(WorkflowError, match=dead):
        one(tmp_path, answer, url="http://127.0.0.1:9/play")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"folder": "nodir"}, "workflow.folder is 'nodir', which is not a folder here"),
        (
            {"python": "/nope/python"},
            "workflow.python is '/nope/python', which is not a program here",
        ),
        ({"python": "bin/python"}, "workflow.python is 'bin/python'"),
    ],
)
def test_places_that_are_not_here_are_refused_by_their_key(
    tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    config = AgentConfig(target="played_agents:two_turns", **keys)
    with pytest.raises(PreflightError, match=says):
        AgentWorkflow(config, context(tmp_path))
    AgentWorkflow(
        config, replace(context(tmp_path), role="launcher")
    )  # another host need not have the modules of the agent


def test_an_interpreter_is_looked_up_in_the_folder_of_the_agent(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "player.py").write_text((HERE / "played_agents.py").read_text())
    config = AgentConfig(target="player:silent", folder=tmp_path, python="bin/python")
    workflow = AgentWorkflow(config, context(tmp_path))
    engines = ScriptedPolicies(["p"]).engines()
    with pytest.raises(WorkflowError, match="agent player:silent sampled nothing"):
        asyncio.run(workflow.run_episode(engines, Prompt("1", {})))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "one of target, command and url, and 'none' for the others; found none"),
        ({"target": "a:b", "url": "http://x"}, "found target and url"),
        ({"target": "a"}, "expected 'module:function'"),
        ({"command": []}, "command is empty"),
        ({"url": "x"}, "expected http"),
        ({"target": "a:b", "deadline_s": 5, "grace_s": 5}, "grace_s is 5; expected less than"),
    ],
)
def test_a_bad_config_says_what_is_expected(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AgentConfig(**keys)


@pytest.mark.parametrize(
    ("keys", "answering_s"),
    [({}, 570.0), ({"deadline_s": 20}, 18.0), ({"deadline_s": 20, "grace_s": 0}, 20.0)],
)
def test_the_last_seconds_are_for_an_agent_to_end(
    keys: dict[str, Any], answering_s: float, tmp_path: Path
) -> None:
    config = AgentConfig(target="player:silent", **keys)
    assert AgentWorkflow(config, context(tmp_path))._rules.budget.seconds == answering_s
