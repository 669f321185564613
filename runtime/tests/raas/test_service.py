"""A real RaaS process with fake components against a fake dataflow."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from raas_run import FakeDataflow, announcement, task

from astraflow_wire import messages

pytestmark = pytest.mark.timeout(30)


def notices(*versions, policy="solver", **fields):
    return messages.Notices(announcements=[announcement(v, policy) for v in versions], **fields)


def slow_task(identifier="t0", **changes):
    """An episode that takes a second with ``token_s`` 0.05."""
    return task(
        identifier, group_size=1, sampling=messages.SamplingMessage(max_tokens=20), **changes
    )


def sampled_versions(group):
    return group.versions[group.loss_mask.astype(bool)].tolist()


@pytest.mark.slow
def test_a_raas_rolls_out_tasks_and_leaves_on_request(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            start = [announcement(0, "solver"), announcement(0, "verifier")]
            await flow.tell(messages.Notices(announcements=start), tasks=[task("t0"), task("t1")])
            config = make_config(policies=("solver", "verifier"))
            async with raas_process(config, flow.server.url) as raas:
                await flow.until(lambda: len(flow.groups) == 2)
                status = await raas.status()
                figures = await raas.get("/metrics")
                await flow.until(
                    lambda: flow.renewals and flow.renewals[-1].metrics["episodes"] == 8
                )
                await flow.tell(messages.Notices(stop=True))
                assert await raas.end() == 0
            return flow, status, figures

    flow, status, figures = asyncio.run(scenario())
    group = flow.groups[0]
    assert group.header.task == "t0" and group.header.trajectories == 4
    assert group.header.metrics["turns"] == [1.0] * 4
    assert [s.policy for s in group.header.sequences] == ["solver", "verifier"] * 4
    assert [s.reward for s in group.header.sequences] == [3.0] * 8
    assert group.loss_mask[:7].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert group.versions[:7].tolist() == [-1, -1, -1, -1, 0, 0, 0]
    assert status["serving"] == {"solver": 0, "verifier": 0} and status["ready"]
    assert 'astraflow_raas_policy_swaps{policy="verifier"} 1.0' in figures
    metrics = flow.renewals[-1].metrics
    assert metrics["tokens_generated"] == 48 and metrics["solver/swaps"] == 1
    assert metrics["prompt_tokens"] == 64 and metrics["cpu_s"] > 0
    assert all(lease.free == 0 for lease in flow.leases if len(lease.serving) < 2)
    assert [left.raas for left in flow.left] == ["raas-0"]


@pytest.mark.slow
def test_answers_while_an_engine_blocks_and_leaves_on_a_signal(make_config, raas_process):
    async def scenario():
        config = make_config(engine={"block_s": 20.0})
        async with FakeDataflow() as flow, raas_process(config, flow.server.url) as raas:
            await flow.until(lambda: flow.registrations)
            answers = []
            for _ in range(5):
                began = time.monotonic()
                health = await raas.get("/v1/health")
                answers.append(time.monotonic() - began)
                assert "starting" in health
            await flow.until(lambda: flow.renewals and flow.renewals[-1].waits)
            began = time.monotonic()
            raas.terminate()
            assert await raas.end() == 0
            return flow, answers, time.monotonic() - began

    flow, answers, leaving_s = asyncio.run(scenario())
    assert max(answers) < 1 and leaving_s < 5
    assert "raas-0: weight refresh of policy solver" in flow.renewals[-1].waits[0].who
    assert len(flow.left) == 1


@pytest.mark.slow
@pytest.mark.parametrize("pause", ["keep", "abort"])
def test_weights_are_swapped_under_requests_in_flight(make_config, raas_process, pause):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(notices(0), tasks=[slow_task()])
            config = make_config(engine={"token_s": 0.05}, raas={"pause": pause})
            async with raas_process(config, flow.server.url):
                await flow.until(lambda: flow.leases and not flow.tasks)
                await asyncio.sleep(0.4)
                await flow.tell(notices(1))
                await flow.until(lambda: flow.groups)
                await flow.until(lambda: flow.renewals[-1].metrics["solver/swaps"] == 2)
            return flow

    flow = asyncio.run(scenario())
    versions = sampled_versions(flow.groups[0])
    assert len(versions) == 20 and set(versions) == {0, 1} and versions == sorted(versions)
    metrics = flow.renewals[-1].metrics
    assert all(
        metrics[f"solver/{name}"] > 0 for name in ("pull_s", "pause_s", "load_s", "resume_s")
    )
    assert (metrics["solver/link_mb_s"], metrics["solver/link_s"]) == (23.0, 0.3)


@pytest.mark.slow
def test_a_raas_reports_at_once_what_it_serves(make_config, raas_process):
    """The dataflow holds back work from a RaaS that it believes to be too far behind."""

    async def scenario():
        async with FakeDataflow() as flow:
            flow.renew_s = 60.0
            await flow.tell(notices(0))
            async with raas_process(make_config(), flow.server.url):
                for version in (0, 1):
                    await flow.until(
                        lambda v=version: any(r.serving == {"solver": v} for r in flow.renewals)
                    )
                    await flow.tell(notices(version + 1))

    asyncio.run(scenario())


@pytest.mark.slow
def test_pinned_episodes_keep_their_version_and_revoked_ones_end(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            pinned = slow_task("eval", pinned={"solver": 0}, eval_set="held_out")
            await flow.tell(notices(0, pins={"solver": 0}), tasks=[pinned, slow_task("revoked")])
            config = make_config(engine={"token_s": 0.05}, run={"group_size": 1})
            async with raas_process(config, flow.server.url) as raas:
                await flow.until(lambda: not flow.tasks)
                revoked = messages.RevokedLease(task="revoked", reason="its lease expired")
                # The pin is gone before the pinned episode ends.
                await flow.tell(notices(1, revoked=[revoked, revoked]))
                await flow.until(lambda: flow.groups)
                held = dict(flow.leases[-1].serving)
                await flow.until(lambda: flow.leases[-1].serving == {"solver": 1})
                await flow.until(lambda: flow.renewals[-1].metrics["running"] == 0)
            return flow, held, raas.log.read_text()

    flow, held, log = asyncio.run(scenario())
    assert log.count("task revoked is revoked: its lease expired") == 1
    assert [group.header.task for group in flow.groups] == ["eval"]
    assert sampled_versions(flow.groups[0]) == [0] * 20 and held == {"solver": 0}
    assert flow.groups[0].header.eval_set == "held_out" and not flow.failures


@pytest.mark.slow
def test_a_killed_host_is_replaced_and_its_tasks_continue(make_config, raas_process):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(notices(3), tasks=[slow_task()])
            async with raas_process(make_config(engine={"token_s": 0.05}), flow.server.url) as raas:
                await flow.until(lambda: flow.leases and not flow.tasks)
                os.kill((await raas.status())["replicas"]["solver"][0]["pid"], signal.SIGKILL)
                await flow.until(lambda: flow.groups)
                # A dataflow that was restarted does not know its RaaS.
                flow.known = False
                await flow.tell(tasks=[task("t1", group_size=1)])
                await flow.until(lambda: len(flow.groups) == 2)
                await flow.until(lambda: flow.renewals[-1].metrics["solver/host_restarts"] == 1)
            return flow

    flow = asyncio.run(scenario())
    assert [group.header.task for group in flow.groups] == ["t0", "t1"] and not flow.failures
    # The next host serves what the first one served, not the initial weights.
    assert sampled_versions(flow.groups[0]) == [3] * 20
    assert sampled_versions(flow.groups[1]) == [3, 3, 3]
    assert len(flow.registrations) == 2


@pytest.mark.slow
def test_a_dataflow_that_stays_away_ends_the_raas_with_a_clear_message(make_config, raas_process):
    async def scenario():
        flow = FakeDataflow()
        async with flow:
            await flow.tell(notices(0))
            config = make_config(run={"deadline_s": 1.0})
            async with raas_process(config, flow.server.url) as raas:
                await flow.until(lambda: flow.leases and flow.leases[-1].serving)
                await flow.server.stop()
                code = await raas.end(20)
                return code, raas.log.read_text()

    code, log = asyncio.run(scenario())
    assert code == 1
    assert "raas-0 ends: raas-0 lost its connection to the dataflow: gave up after" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_raas_whose_name_is_taken_ends_with_one_line_and_an_exit_code_of_its_own(
    make_config, raas_process
):
    async def scenario():
        async with FakeDataflow() as flow:
            flow.taken = "the name 'raas-0' is taken: pid 7 on there"
            async with raas_process(make_config(), flow.server.url) as raas:
                return await raas.end(20), raas.log.read_text(), len(flow.registrations)

    code, log, asked = asyncio.run(scenario())
    assert (code, asked) == (3, 1)
    (line,) = [line for line in log.splitlines() if " ERROR " in line]
    assert line.endswith("raas-0 ends: the name 'raas-0' is taken: pid 7 on there")
    assert "Traceback" not in log
