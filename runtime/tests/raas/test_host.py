"""Engine hosts as real processes: their replies, and the effects of their death or that of their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.errors import RunFailed, UserError, WeightsError, WrongVersion
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine
from astraflow_testing.forked_runs import HOSTS, RunForkServer
from astraflow_wire.host.sockets import socket_folder

pytestmark = pytest.mark.timeout(30)
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SOCKETS = Path()


def request(identifier, max_tokens=3, pinned=None, prompt=4):
    tokens = np.arange(prompt, dtype=np.int32)
    return GenerateRequest(
        str(identifier), tokens, Sampling(max_tokens=max_tokens), pinned_version=pinned
    )


@pytest.fixture(scope="module", autouse=True)
def forked():
    """The hosts are forks of a process that has their imports."""
    server = RunForkServer(HOSTS) if sys.platform == "linux" else None
    with server.forking() if server else nullcontext():
        yield
    if server:
        server.close()


@pytest.fixture(scope="module", autouse=True)
def sockets():
    """One folder for all hosts of these tests."""
    global SOCKETS
    folder = socket_folder()
    SOCKETS = folder.path
    yield
    folder.close()


def settings(config, directory) -> HostSettings:
    own = SOCKETS / directory.name[-20:]
    own.mkdir()
    return HostSettings(config, directory, "raas-0", "solver", "secret", own)


def hosted(config, directory, scenario):
    """Run ``scenario(host, wait_end_task)`` against a started host, and close it."""

    async def run():
        host = await EngineHostProcess.start(settings(config, directory), 1)
        life = asyncio.create_task(host.wait_end())
        try:
            return await scenario(host, life)
        finally:
            await host.close()
            await life

    return asyncio.run(run())


async def running(client, count=1):
    """Wait until the engine works on ``count`` requests."""
    async with asyncio.timeout(10):
        while (await client.health(5))["running"] < count:
            await asyncio.sleep(0.01)


def test_answers_every_request_and_keeps_the_types_of_errors(make_config, tmp_path):
    async def scenario(host, life):
        client = host.client
        # 17 prompts of different lengths, so that a slip in the offsets shows.
        results = await asyncio.gather(
            *(client.generate(request(i, 1 + i % 5, prompt=1 + i)) for i in range(17))
        )
        assert [r.id for r in results] == [str(i) for i in range(17)]
        assert [len(r.tokens) for r in results] == [1 + i % 5 for i in range(17)]
        assert results[4].tokens.tolist() == [3] * 5 and results[4].versions.tolist() == [0] * 5
        assert results[4].logprobs.tolist() == [-1.0] * 5 and results[4].finish_reason == "length"
        scores = await client.score(np.arange(6, dtype=np.int32), 5)
        assert scores.tolist() == [0, -1, -2, -3, -4, -5]
        with pytest.raises(ValueError, match="over the context"):
            await client.generate(request("long", 100))
        with pytest.raises(WrongVersion, match="pinned to 7"):
            await client.generate(request("pinned", pinned=7))
        path = tmp_path / "weights"
        path.write_text("9")
        with pytest.raises(WeightsError, match="another shape"):
            await client.load_weights(WeightSource("solver", 9, path, "d", 1, 0.1), 5)
        path.write_text("8")
        await client.load_weights(WeightSource("solver", 8, path, "d", 1, 0.1), 5)
        assert (await client.generate(request("new", pinned=8))).versions.tolist() == [8] * 3
        assert (await client.health(5))["version"] == 8
        assert (await client.ping(5))["cpu_s"] > 0
        assert host.context_length == 64 and host.semantics.temperature

    hosted(make_config(engine={"refuse_version": 9}), tmp_path, scenario)


def test_requests_that_end_one_after_the_other_all_come_back(make_config, tmp_path):
    async def scenario(host, life):
        async def one(number):
            await asyncio.sleep(0.003 * number)
            return await host.client.generate(request(number, 1 + number % 4))

        async with asyncio.timeout(5):
            results = await asyncio.gather(*(one(number) for number in range(30)))
        assert [len(r.tokens) for r in results] == [1 + n % 4 for n in range(30)]

    hosted(make_config(engine={"token_s": 0.01}), tmp_path, scenario)


def test_a_cancelled_request_is_aborted_in_the_engine(make_config, tmp_path):
    async def scenario(host, life):
        endless = asyncio.create_task(host.client.generate(request("endless", 50)))
        await running(host.client)
        endless.cancel()
        await asyncio.gather(endless, return_exceptions=True)
        until = time.monotonic() + 5
        while (await host.client.health(5))["running"] and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert (await host.client.health(5))["running"] == 0

    hosted(make_config(engine={"token_s": 0.2}), tmp_path, scenario)


@pytest.mark.slow
def test_a_killed_host_fails_its_requests_and_is_started_again(make_config, tmp_path):
    async def scenario():
        given = settings(make_config(engine={"token_s": 0.05}), tmp_path)
        engine = SupervisedEngine("solver", lambda attempt: EngineHostProcess.start(given, attempt))
        up = asyncio.Event()
        engine.changed = lambda: up.set() if engine.host else up.clear()
        life = asyncio.create_task(engine.run())
        await up.wait()
        first = engine.host.pid
        pending = asyncio.create_task(engine.generate(request("r", 40)))
        await running(engine.host.client)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(
            HostGone, match="engine host of policy 'solver' in raas-0 was killed by SIGKILL"
        ):
            await pending
        with pytest.raises(HostGone, match="was killed by SIGKILL"):
            await engine.generate(request("while down"))
        async with asyncio.timeout(10):
            while engine.host is None or engine.host.pid == first:
                await asyncio.sleep(0.01)
        assert engine.restarts == 1
        assert len((await engine.generate(request("s", 2))).tokens) == 2
        await engine.close()
        await life

    asyncio.run(scenario())


def test_a_host_ends_with_its_engine_and_what_was_under_way_can_be_retried(make_config, tmp_path):
    async def scenario(host, life):
        under_way = asyncio.ensure_future(host.client.generate(request("slow", 50)))
        await running(host.client)
        for lost in (host.client.generate(request("lost")), under_way):
            with pytest.raises(HostGone, match="exit code 1"):
                await asyncio.wait_for(lost, 10)
        ended = await asyncio.wait_for(life, 10)
        assert ended.startswith("ended with exit code 1 after printing ")
        assert "the engine failed: its backend is lost" in ended

    hosted(make_config(engine={"token_s": 0.05}), tmp_path, scenario)


def test_a_host_that_hangs_is_killed_and_named(make_config, tmp_path, caplog):
    async def scenario(host, life):
        with pytest.raises(HostGone, match="did not respond for 1 s"):
            await host.client.generate(request("hang"))
        assert await life == "did not respond for 1 s"

    hosted(make_config(run={"deadline_s": 1.0}), tmp_path, scenario)
    assert "it is idle: 0.0 s of CPU" in caplog.text


@pytest.mark.slow
@ON_LINUX
def test_a_host_that_is_stopped_is_named_and_waited_for(make_config, tmp_path, caplog):
    async def scenario(host, life):
        changes = []
        host.silence_changed = lambda: changes.append(host.silence is not None)
        began = time.monotonic()
        os.kill(host.pid, signal.SIGSTOP)
        calls = [
            asyncio.create_task(host.client.health(1.0)),
            asyncio.create_task(host.client.generate(request("r", 2))),
        ]
        async with asyncio.timeout(4):  # five deadlines, after which it would be killed, are later
            while (wait := host.wait()) is None or wait.since_s < 2.2:
                await asyncio.sleep(0.05)
        assert wait.for_whom == "the engine host of policy 'solver' in raas-0"
        assert f"stopped (SIGSTOP); `kill -CONT {host.pid}`" in wait.what
        assert 0 < wait.until_s < 4
        os.kill(host.pid, signal.SIGCONT)
        async with asyncio.timeout(5):
            health, result = await asyncio.gather(*calls)
            while host.wait() is not None:
                await asyncio.sleep(0.05)
        assert health["version"] == 0 and len(result.tokens) == 2
        assert changes == [True, False]
        assert 2 < host.stopped_s() <= time.monotonic() - began + 0.1

    hosted(make_config(run={"deadline_s": 1.0}), tmp_path, scenario)
    said = [r.getMessage() for r in caplog.records if "engine host" in r.getMessage()]
    assert len(said) == 2 and "has not responded" in said[0] and "continues after" in said[1]


@pytest.mark.slow
@ON_LINUX
def test_a_host_that_stays_stopped_is_given_up_in_the_end(make_config, tmp_path):
    async def scenario(host, life):
        os.kill(host.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(HostGone, match="did not respond for"):
            await host.client.generate(request("r"))
        assert 2 <= time.monotonic() - began < 6

    hosted(make_config(run={"deadline_s": 0.5}), tmp_path, scenario)


@pytest.fixture
def short_path():
    """Where ``ipc://`` addresses fit; pytest's own paths may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_the_sockets_of_a_killed_raas_are_removed_by_the_next(short_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = """
from astraflow_wire.host.sockets import socket_folder
import os, signal
folder = socket_folder()
(folder.path / "solver-1").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    (orphan,) = short_path.glob("astraflow-*")
    others = short_path / "astraflow-of-somebody-else"
    others.mkdir()
    first = socket_folder()
    assert not orphan.exists() and others.exists()
    second = socket_folder()
    assert first.path.exists() and oct(first.path.stat().st_mode & 0o777) == "0o700"
    for folder in (first, second):
        folder.close()
        assert not folder.path.exists()


def test_a_host_that_is_given_up_ends_with_the_reason(make_config, tmp_path):
    async def scenario(host, life):
        host.kill("did not load version 7")
        assert await life == "did not load version 7"
        with pytest.raises(HostGone, match="did not load version 7"):
            await host.client.generate(request("r"))

    hosted(make_config(), tmp_path, scenario)


@pytest.mark.slow
def test_gives_up_on_a_host_that_keeps_dying(make_config, tmp_path):
    async def scenario():
        given = settings(make_config(), tmp_path)
        engine = SupervisedEngine("solver", lambda attempt: EngineHostProcess.start(given, attempt))

        def feed_the_poison():
            if engine.host:
                victims.append(asyncio.create_task(engine.generate(request("poison", 3))))

        victims = []
        engine.changed = feed_the_poison
        with pytest.raises(RunFailed, match="died 3 times in a row"):
            await engine.run()
        await asyncio.gather(*victims, return_exceptions=True)
        assert len(victims) == 3

    asyncio.run(scenario())


def test_an_interpreter_that_cannot_run_a_host_is_quoted(make_config, tmp_path, capfd):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho oh dear >&2\necho ModuleNotFoundError: astraflow_core >&2\nexit 3\n"
    )
    python.chmod(0o700)

    async def scenario():
        given = settings(make_config(engine={"python": str(python)}), tmp_path)
        await SupervisedEngine("solver", lambda n: EngineHostProcess.start(given, n)).run()

    with pytest.raises(RunFailed) as gave_up:
        asyncio.run(scenario())
    assert str(gave_up.value).endswith(
        "last it ended with exit code 3 after printing 'ModuleNotFoundError: astraflow_core', "
        "before its engine was ready"
    )
    assert capfd.readouterr().err.count("oh dear") == 3  # and all of it is in the log


def test_an_engine_that_cannot_start_says_why_as_the_users_mistake(make_config, tmp_path, capfd):
    async def scenario():
        await EngineHostProcess.start(
            settings(make_config(engine={"fail": "no GPU here"}), tmp_path), 1
        )

    with pytest.raises(UserError, match="engine of policy 'solver' did not start: no GPU here"):
        asyncio.run(scenario())
    logged = capfd.readouterr().err
    assert "no GPU here" in logged and "Traceback" not in logged


def test_a_host_does_not_outlive_its_parent(make_config, tmp_path):
    (tmp_path / "config.json").write_text(make_config().model_dump_json())
    code = """
import asyncio, sys
from pathlib import Path
from astraflow_core.config.models import RunConfig
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings
from astraflow_wire.host.sockets import socket_folder
folder = Path(sys.argv[1])
config = RunConfig.model_validate_json((folder / "config.json").read_text())
sockets = socket_folder()
async def main():
    host = await EngineHostProcess.start(HostSettings(config, folder, "raas-0", "solver", "", sockets.path), 1)
    sys.stdout.write(f"{host.pid}\\n"); sys.stdout.flush()
    await host.wait_end()
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        host = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait(5)
        parent.stdout.close()
    until = time.monotonic() + 2
    while _alive(host) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _alive(host)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
