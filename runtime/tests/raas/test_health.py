"""A RaaS answers while its weights are fetched and loaded. Nothing here is timed: what blocks continues only
after the answers have come."""

from __future__ import annotations

import asyncio
import json

import pytest
from raas_run import FakeDataflow, announcement, task

from astraflow_wire import messages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
ANSWERS = 20


async def begun(folder, what):
    while not (folder / f"{what}-begun").exists():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("step", ["fetch", "load"])
def test_health_is_answered_while_weights_are_on_their_way(
    make_config, raas_process, tmp_path, step
):
    folder = tmp_path / "gates"
    folder.mkdir()
    for gate in ("fetch-0", "load-0", "fetch-1", "load-1"):
        if gate != f"{step}-1":
            (folder / f"{gate}-may-end").touch()

    async def scenario():
        parts = {"folder": str(folder)}
        config = make_config(
            engine={"use": "blocking_parts:BlockingEngine", **parts},
            transport={"use": "blocking_parts:BlockingTransport", **parts},
            run={"deadline_s": 30},
        )
        async with FakeDataflow() as flow:
            await flow.tell(messages.Notices(announcements=[announcement(0)]), tasks=[task()])
            async with raas_process(config, flow.server.url) as raas:
                await flow.until(lambda: flow.groups)
                await flow.tell(messages.Notices(announcements=[announcement(1)]))
                await asyncio.wait_for(begun(folder, f"{step}-1"), 20)
                told = [json.loads(await raas.get("/v1/health")) for _ in range(ANSWERS)]
                serving = (await raas.status())["serving"]
                renewals = len(flow.renewals)
                await flow.until(lambda: len(flow.renewals) > renewals)
                (folder / f"{step}-1-may-end").touch()
                await flow.until(lambda: flow.renewals[-1].serving == {"solver": 1})
                return told, serving

    told, serving = asyncio.run(scenario())
    assert [answer["status"] for answer in told] == ["ready"] * ANSWERS
    assert serving == {"solver": 0}
