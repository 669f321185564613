"""A real RaaS process with fake components against a fake dataflow."""

from __future__ import annotations

import asyncio
import json

import pytest
from raas_run import TOKEN, FakeDataflow, announcement, task

from astraflow_core.wire import messages
from astraflow_core.wire.client import Client

pytestmark = pytest.mark.timeout(30)


def news(*versions, **fields):
    return messages.News(announcements=[announcement(v) for v in versions], **fields)


def test_rolls_out_tasks_and_leaves_when_told(make_config, raas_process, tmp_path):
    async def scenario():
        async with FakeDataflow() as flow:
            await flow.tell(news(0), tasks=[task("t0"), task("t1")])
            async with raas_process(make_config(), flow.server.url) as raas:
                await flow.until(lambda: len(flow.groups) == 2)
                address = json.loads((tmp_path / "state/raas-0/raas.json").read_text())
                client = Client(address["url"], TOKEN)
                status = await client.get_json("/v1/status", deadline_s=5)
                await client.aclose()
                await flow.until(
                    lambda: flow.renewals and flow.renewals[-1].metrics["episodes"] == 8
                )
                await flow.tell(messages.News(stop=True))
                assert await raas.end() == 0
            return flow, status

    flow, status = asyncio.run(scenario())
    group = flow.groups[0]
    assert group.header.task == "t0" and group.header.trajectories == 4
    assert group.header.metrics["turns"] == 1.0
    assert [s.reward for s in group.header.sequences] == [3.0] * 4
    assert group.loss_mask[:7].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert group.versions[:7].tolist() == [-1, -1, -1, -1, 0, 0, 0]
    assert status["serving"] == {"solver": 0} and status["ready"]
    metrics = flow.renewals[-1].metrics
    assert metrics["tokens_generated"] == 24 and metrics["solver/swaps"] == 1
    assert metrics["prompt_tokens"] == 32 and metrics["cpu_s"] > 0
    assert all(lease.free == 0 for lease in flow.leases if not lease.serving)
    assert [left.raas for left in flow.left] == ["raas-0"]
