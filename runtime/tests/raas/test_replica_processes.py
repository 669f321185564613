"""Several engine hosts behind one RaaS: real processes, killed and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from raas_run import FakeDataflow, announcement, task

from astraflow_wire import messages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def notices(*versions):
    return messages.Notices(announcements=[announcement(version) for version in versions])


def tasks(*identifiers, tokens=20):
    sampling = messages.SamplingMessage(max_tokens=tokens)
    return [task(name, group_size=1, sampling=sampling) for name in identifiers]


def sampled_versions(group):
    return group.versions[group.loss_mask.astype(bool)].tolist()


async def replicas(raas):
    return json.loads(await raas.get("/v1/health"))["replicas"]["solver"]


async def until(raas, condition, seconds=20.0):
    """The replicas, once they are as they should be."""
    async with asyncio.timeout(seconds):
        while not condition(found := await replicas(raas)):
            await asyncio.sleep(0.05)
    return found


def are(state):
    return lambda found: [replica["state"] for replica in found] == [state, state]


def both_busy(found):
    return all(replica["pending"] for replica in found)


def test_a_killed_replica_takes_only_its_own_requests_and_rejoins(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(notices(3))
            config = make_config(
                engine={"token_s": 0.1, "replicas": 2},
                run={"group_size": 1},
                raas={"max_concurrent_episodes": 4},
            )
            async with raas_process(config, flow.server.url) as raas:
                before = await until(raas, are("serving"))
                await flow.tell(tasks=tasks("t0", "t1", "t2", "t3"))
                await until(raas, both_busy)
                os.kill(before[0]["pid"], signal.SIGKILL)
                await flow.until(lambda: len(flow.groups) == 4, 30)
                after = await until(raas, are("serving"))
                await flow.tell(tasks=tasks("t4", "t5", tokens=3))
                await flow.until(lambda: len(flow.groups) == 6)
            return flow, before, after

    flow, before, after = asyncio.run(scenario())
    assert not flow.failures
    assert sorted(group.header.task for group in flow.groups) == [f"t{n}" for n in range(6)]
    assert all(set(sampled_versions(group)) == {3} for group in flow.groups)
    assert [replica["version"] for replica in before + after] == [3] * 4
    assert after[0]["pid"] != before[0]["pid"] and after[1]["pid"] == before[1]["pid"]
    assert [replica["restarts"] for replica in after] == [1, 0]
    # Requests on the other replica were not repeated.
    assert 4 <= after[0]["routed"] + after[1]["routed"] < 8


@ON_LINUX
def test_work_goes_round_a_replica_that_is_stopped(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(notices(0))
            config = make_config(
                engine={"replicas": 2},
                run={"group_size": 1, "deadline_s": 1.0},
                raas={"max_concurrent_episodes": 4},
            )
            async with raas_process(config, flow.server.url) as raas:
                before = await until(raas, are("serving"))
                os.kill(before[0]["pid"], signal.SIGSTOP)
                stopped = await until(raas, lambda found: found[0]["state"] == "silent")
                waits = (await raas.status())["waits"]
                await flow.tell(tasks=tasks("t0", "t1", "t2", tokens=3))
                await flow.until(lambda: len(flow.groups) == 3)
                os.kill(before[0]["pid"], signal.SIGCONT)
                await until(raas, are("serving"))
            return flow, before, stopped, waits

    flow, before, stopped, waits = asyncio.run(scenario())
    assert not flow.failures and stopped[1]["state"] == "serving"
    (wait,) = [wait for wait in waits if "SIGSTOP" in wait["what"]]
    assert "the engine host of policy 'solver' in raas-0 (replica 0)" in wait["for_whom"]
    assert f"kill -CONT {before[0]['pid']}" in wait["what"]


def test_a_replica_that_keeps_dying_leaves_the_run_to_the_other(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(notices(0))
            config = make_config(engine={"replicas": 2}, run={"group_size": 1})
            async with raas_process(config, flow.server.url) as raas:
                found = await until(raas, are("serving"))
                survivor = found[1]["pid"]
                for deaths in range(1, 5):
                    os.kill(found[0]["pid"], signal.SIGKILL)
                    found = await until(
                        raas,
                        lambda f, n=deaths: f[0]["restarts"] == n and f[0]["state"] == "serving",
                        40,
                    )
                await flow.tell(tasks=tasks("t0", tokens=3))
                await flow.until(lambda: flow.groups)
                assert found[1]["pid"] == survivor
            return flow

    assert not asyncio.run(scenario()).failures


@ON_LINUX
def test_each_replica_sees_its_own_devices(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(notices(0))
            config = make_config(engine={"replicas": 2, "devices": ["3", "5,6"]})
            async with raas_process(config, flow.server.url) as raas:
                found = await until(raas, are("serving"))
                return [
                    (Path("/proc") / str(replica["pid"]) / "environ").read_bytes().split(b"\0")
                    for replica in found
                ]

    first, second = asyncio.run(scenario())
    assert b"CUDA_VISIBLE_DEVICES=3" in first and b"CUDA_VISIBLE_DEVICES=5,6" in second


def test_devices_are_given_to_every_replica_or_to_none(make_config):
    with pytest.raises(ValueError, match="devices has 1 entries for 2 replicas"):
        make_config(engine={"replicas": 2, "devices": ["0"]})
