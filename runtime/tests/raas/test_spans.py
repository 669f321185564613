"""What a RaaS says of the time that the episodes of a traced task take."""

from __future__ import annotations

import asyncio

import pytest
from played import fixed, once, rolled_out
from raas_run import task

from astraflow_runtime.raas.episodes.episodes import TaskRunner
from astraflow_runtime.raas.episodes.spans import MOST_OF_EPISODE, SpanLog, record, recording
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import as_workflow
from astraflow_wire.groups import ReceivedGroup

pytestmark = pytest.mark.timeout(20)


async def twice(engines, prompt):
    await once(engines, prompt)
    return await once(engines, prompt)


def test_a_traced_task_says_what_took_time_in_each_of_its_episodes(handle):
    async def slowly(view):
        await asyncio.sleep(0.02)
        return 0.25

    scorer, workflow = LoopScorer("r", slowly), NamedWorkflow("w", as_workflow(twice))
    runner = TaskRunner("raas-0", workflow, scorer, {"solver": handle}, traces=lambda _: True)
    spans = ReceivedGroup(asyncio.run(runner.run(task()))).header.spans
    assert len(spans) == 16
    for episode in range(4):
        own = [span for span in spans if span.episode == episode]
        *inner, whole = own
        assert (whole.name, whole.policy) == ("episode", "")
        wanted = [("generate", "solver"), ("generate", "solver"), ("reward", "")]
        assert [(s.name, s.policy) for s in inner] == wanted
        for span in inner:
            assert span.ago_s <= whole.ago_s
            assert span.ago_s - span.took_s >= whole.ago_s - whole.took_s
        assert 0.02 <= inner[-1].took_s < whole.took_s


def test_a_task_that_is_not_traced_says_nothing(handle):
    assert rolled_out(handle, twice, fixed).header.spans == []


def test_an_agent_of_many_requests_leaves_a_bounded_number_and_its_whole():
    log = SpanLog()
    with recording(log, 3):
        for _ in range(10 * MOST_OF_EPISODE):
            record("generate", "solver", 0.0)
        record("episode", "", 0.0)
    record("generate", "solver", 0.0)  # of no prompt
    spans = log.encoded()
    assert len(spans) == MOST_OF_EPISODE + 1
    assert spans[-1].name == "episode" and {span.episode for span in spans} == {3}
