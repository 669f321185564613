"""A pool of environments: deadlines, deaths and replacements, with real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import faulty_environments
import msgspec
import pytest

from astraflow_core.errors import ConfigError, EnvironmentFailed, PluginError, UserError
from astraflow_core.types import Action, ComponentContext, Outcome, Prompt, RunInfo
from astraflow_environments import worker
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.messages import ResetCall
from astraflow_environments.pool import EnvironmentPool
from astraflow_wire.host.processes import look_at

PATIENT_S = 60.0


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


BOTH = pytest.mark.parametrize("use", ["Obeys", "OnLoop"])


@contextlib.asynccontextmanager
async def pool(tmp_path: Path, use: str = "Obeys", **keys: Any) -> AsyncIterator[EnvironmentPool]:
    table = {"use": f"faulty_environments:{use}"} | keys.pop("table", {})
    run = RunInfo("r", 7, 1, 0, ("p",), tmp_path)
    context = ComponentContext(run, "raas", "", 3, tmp_path / "state")
    made = EnvironmentPool(EnvironmentKeys(environment=table, **keys), context)
    try:
        async with asyncio.timeout(PATIENT_S):
            yield made
    finally:
        await made.close()


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(PATIENT_S):
        while any(look_at(pid) for pid in pids):
            await asyncio.sleep(0.02)


def text(seen: Any) -> str:
    return str(seen.messages[0]["content"])


async def pid_of(environment: Any) -> int:
    return int(text(await environment.reset(Prompt("p"), 1)).split()[2])


@BOTH
@in_a_loop
async def test_an_episode_is_played(tmp_path: Path, use: str) -> None:
    async with pool(tmp_path, use) as made, made.episode() as played:
        first = await played.reset(Prompt("p1", {"order": ""}), 2**63 - 1)
        assert text(first).split()[:2] == ["p1", str(2**63 - 1)]
        assert (first.reward, first.outcome) == (0.0, None)
        assert text(await played.step(Action("hello"))) == "1: hello"
        last = await played.step(Action("end"))
        assert (last.reward, last.outcome, last.metrics) == (1.0, Outcome.FINISHED, {"said": 2.0})
        assert type(last.reward) is float


@in_a_loop
async def test_metrics_that_no_episode_has_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool(tmp_path, table={"metrics": ["said", "score"]}) as made:
        for _ in range(2):
            async with made.episode() as played:
                await played.reset(Prompt("p"), 1)
                await played.step(Action("end"))
    (warned,) = [record.getMessage() for record in caplog.records]
    assert (
        "ended without 'score', which [workflow.environment] metrics names; it has 'said'" in warned
    )


@in_a_loop
async def test_workers_are_used_again_and_draw_by_the_seed_alone(tmp_path: Path) -> None:
    async with pool(tmp_path, table={"step": 0.25}) as made:
        said = []
        for seed in (5, 5, 6):
            async with made.episode() as played:
                said.append(text(await played.reset(Prompt("p"), seed)).split())
                assert (await played.step(Action("x"))).reward == 0.25
        pids, episodes, drawn = ({row[i] for row in said} for i in (2, 3, 4))
        assert (len(pids), episodes, len(drawn)) == (1, {"1", "2", "3"}, 2)
        assert pids != {str(os.getpid())}


@BOTH
@in_a_loop
async def test_a_cancelled_episode_gives_its_place_back(tmp_path: Path, use: str) -> None:
    async with pool(tmp_path, use, most_environments=1) as made:

        async def episode(order: str) -> None:
            async with made.episode() as played:
                await played.reset(Prompt("p"), 1)
                with contextlib.suppress(EnvironmentFailed):
                    await played.step(Action(order))
                asked = asyncio.current_task()
                assert asked is not None
                asked.cancel()  # the cancellation arrives while the episode is given back

        for order in ("hello", "reward nan"):  # it was played, and it failed
            await asyncio.gather(asyncio.create_task(episode(order)), return_exceptions=True)
            async with made.episode() as played:
                assert text(await played.reset(Prompt("p"), 1)).startswith("p 1 ")


FAILURES = (
    ("raise no such file", "error", r"raised ValueError: no such file \(.*faulty_env.*:\d+\)"),
    ("fail the mirror is away", "network", "the mirror is away"),
    ("other", "malformed", "gave dict in the place of an Observation"),
    ("reward nan", "malformed", "gave the reward nan"),
)
"""What an environment is told to do → the kind of the failure, and what its message says."""


@BOTH
@in_a_loop
async def test_what_goes_wrong_is_a_failure_with_a_kind(tmp_path: Path, use: str) -> None:
    async with pool(tmp_path, use) as made:
        for order, kind, reason in FAILURES:
            says = f"environment 'faulty.*' {reason}"
            with pytest.raises(EnvironmentFailed, match=says) as failed:
                async with made.episode() as played:
                    await played.reset(Prompt("p"), 1)
                    await played.step(Action(order))
            assert failed.value.kind == kind, order
            async with made.episode() as played:  # by a new instance
                assert text(await played.reset(Prompt("p"), 1)).split()[3] == "1", order


LOSSES = (
    ("hang", "timeout", r"gave no answer within 0.5 s \(\[workflow\] step_deadline_s\)"),
    ("exit 3", "crashed", "its worker process ended with exit code 3"),
    ("crash", "crashed", "its worker process was killed by SIGSEGV"),
    ("allocate 4000000000", "memory", "has no memory left"),
    ("object", "malformed", "returned a value that is not JSON"),
    ("large 20000000", "malformed", "returned an observation of 2000"),
)
"""Likewise, where the process is lost."""


@in_a_loop
async def test_a_worker_that_hangs_or_dies_is_replaced(tmp_path: Path) -> None:
    keys = {"step_deadline_s": 0.5, "worker_memory_mb": 3000}
    async with pool(tmp_path, **keys) as made, made.episode() as other:
        await other.reset(Prompt("other"), 1)
        for number, (order, kind, reason) in enumerate(LOSSES, start=1):
            with pytest.raises(EnvironmentFailed, match=reason) as failed:
                async with made.episode() as played:
                    pid = await pid_of(played)
                    await played.step(Action(order))
            assert (failed.value.kind, made.replaced) == (kind, number), order
            assert text(await other.step(Action("still here"))) == f"{number}: still here"
            await until_gone(pid)
            async with made.episode() as played:
                assert await pid_of(played) != pid, order


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["crash", "end"])
@in_a_loop
async def test_a_worker_leaves_no_process_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with pool(tmp_path) as made:
        with contextlib.suppress(EnvironmentFailed):
            async with made.episode() as played:
                await played.reset(Prompt("p"), 1)
                await played.step(Action("litter"))
                daemon = int(text(await played.step(Action("daemon"))))
                assert len(list(temporary.rglob("litter"))) == 1 and look_at(daemon)
                await played.step(Action(ends))
        if ends == "crash":
            await until_gone(daemon)
            assert not list(temporary.rglob("litter"))
    await until_gone(daemon)
    assert not list(temporary.iterdir())


@in_a_loop
async def test_an_async_environment_has_deadlines_too(tmp_path: Path) -> None:
    async with pool(tmp_path, "OnLoop", step_deadline_s=0.2) as made:
        with pytest.raises(EnvironmentFailed, match=r"no answer within 0\.2 s") as failed:
            async with made.episode() as played:
                await played.reset(Prompt("p"), 1)
                await played.step(Action("hang"))
        assert failed.value.kind == "timeout"


@in_a_loop
async def test_plain_functions_without_the_capability_are_named_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    says = r"environment 'faulty_environments:Plain' has a plain `def reset`, which returned Observation: write `async def reset`, or"
    async with pool(tmp_path, "Plain") as made:
        with pytest.raises(EnvironmentFailed, match=says) as failed:
            async with made.episode() as played:
                await played.reset(Prompt("p"), 1)
        assert failed.value.kind == "malformed"
    assert "Plain has a plain `def close`: write `async def close`" in caplog.text


def test_a_blocking_one_that_has_to_be_awaited_is_named_with_the_remedy(tmp_path: Path) -> None:
    awaits = faulty_environments.Awaits(None, None)
    body = msgspec.msgpack.encode(ResetCall(Prompt("p"), 1))
    failed = msgspec.msgpack.decode(worker.answer(awaits, (), body))
    assert "has `async def reset`: write `def reset`, or remove the capability" in str(failed)


@BOTH
@in_a_loop
async def test_a_mistake_of_the_user_is_no_failure(tmp_path: Path, use: str) -> None:
    async with pool(tmp_path, use) as made, made.episode() as played:
        with pytest.raises(UserError, match="no level in prompt 'p'"):
            await played.reset(Prompt("p", {"order": "refuse no level in prompt 'p'"}), 1)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("Unbuildable", "could not be built: raised RuntimeError: no display"),
        ("DiesWhenBuilt", "its worker process ended with exit code 9"),
    ],
)
@pytest.mark.slow
@in_a_loop
async def test_one_that_cannot_be_built_fails_each_episode(
    tmp_path: Path, use: str, reason: str
) -> None:
    async with pool(tmp_path, use) as made:
        for _ in range(2):
            with pytest.raises(EnvironmentFailed, match=reason):
                async with made.episode():
                    pass


@in_a_loop
async def test_an_interpreter_that_was_not_made_is_named_with_the_command(tmp_path: Path) -> None:
    for python, told in (
        ("env:nowhere", "make it with `astraflow env create nowhere --plugin PLUGIN`"),
        ("/nowhere/python", "/nowhere/python cannot be started: .* No such file"),
    ):
        async with pool(tmp_path, worker_python=python) as made:
            with pytest.raises(EnvironmentFailed, match=told):
                async with made.episode():
                    pass


def test_keys_are_validated_when_the_pool_is_made(tmp_path: Path) -> None:
    run = RunInfo("r", 7, 1, 0, ("p",), tmp_path)
    context = ComponentContext(run, "raas", "", 3, tmp_path)
    for table, problem in (
        ({"use": "faulty_environments:Obeys", "stp": 1}, "workflow.environment.stp"),
        ({"use": "no_such_game"}, "no environment 'no_such_game' is installed"),
    ):
        with pytest.raises((ConfigError, PluginError), match=problem):
            EnvironmentPool(EnvironmentKeys(environment=table), context)
    with pytest.raises(ValueError, match="name an environment"):
        EnvironmentKeys(environment={"path": "x"})


@pytest.mark.slow
@in_a_loop
async def test_no_more_run_at_once_than_the_keys_allow(tmp_path: Path) -> None:
    async with pool(tmp_path, most_environments=2) as made:
        under_way, most, pids = 0, 0, set()
        both = asyncio.Event()

        async def play() -> None:
            nonlocal under_way, most
            async with made.episode() as played:
                under_way += 1
                most = max(most, under_way)
                if under_way == 2:
                    both.set()
                await asyncio.wait_for(both.wait(), 60)
                pids.add(await pid_of(played))
                await played.step(Action("x"))
                under_way -= 1

        await asyncio.gather(*(play() for _ in range(8)))
        assert (most, len(pids)) == (2, 2)


@pytest.mark.slow
@in_a_loop
async def test_an_episode_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "child"
    async with pool(tmp_path, step_deadline_s=PATIENT_S) as made:
        begun = asyncio.get_running_loop().create_future()

        async def play() -> None:
            async with made.episode() as played:
                begun.set_result(await pid_of(played))
                await played.step(Action(f"spawn {file}"))

        playing = asyncio.create_task(play())
        pid = await begun
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.02)
        playing.cancel()
        await asyncio.wait({playing})
        assert playing.cancelled()
        await until_gone(pid, int(file.read_text()))


@pytest.mark.slow
@in_a_loop
async def test_closing_ends_all_processes(tmp_path: Path) -> None:
    async with pool(tmp_path) as made:
        async with made.episode() as played:
            pid = await pid_of(played)
        server = look_at(pid)
        assert server is not None
        await made.close()
        await until_gone(pid, server.parent)
        async with made.episode() as played:  # and it can be used again
            assert await pid_of(played) != pid


@pytest.mark.slow
def test_a_pool_serves_one_event_loop_after_the_other(tmp_path: Path) -> None:
    run = RunInfo("r", 7, 1, 0, ("p",), tmp_path)
    context = ComponentContext(run, "raas", "", 3, tmp_path)
    made = EnvironmentPool(
        EnvironmentKeys(environment={"use": "faulty_environments:Obeys"}), context
    )

    async def play() -> int:
        async with made.episode() as played:
            return await pid_of(played)

    first, second = asyncio.run(play()), asyncio.run(play())
    assert first != second
    asyncio.run(made.close())


HELD = """
import asyncio, sys
from pathlib import Path
from test_pool import pid_of, pool
from astraflow_core.types import Action

async def main():
    async with pool(Path(sys.argv[1]), step_deadline_s=600) as made, made.episode() as played:
        print(await pid_of(played), flush=True)
        await played.step(Action(f"spawn {sys.argv[1]}/child"))

asyncio.run(main())
"""


@pytest.mark.slow
@in_a_loop
async def test_nothing_outlives_a_process_that_was_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        text=True,
    )
    assert holder.stdout is not None
    with holder.stdout:
        pid = int(await asyncio.to_thread(holder.stdout.readline))
    server = look_at(pid)
    assert server is not None
    file = tmp_path / "child"
    while not (file.exists() and file.read_text()):
        await asyncio.sleep(0.02)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    await until_gone(pid, server.parent, int(file.read_text()))
