"""A trainer that has lost its state registers with the weights of a published version."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi.testclient import TestClient

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.fleet.notices import has_notices
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire import messages
from astraflow_wire.http.recovery import OfferVersion, RecoverableVersions, RecoverVersion
from astraflow_wire.messages import RegisterTrainer


def update(b, version):
    """Make the update of ``version``; the next version is announced before it is acknowledged."""
    batch = b.next_batch(version)
    b.announce(version + 1)
    b.acknowledge(batch.id, version + 1)


def fed(bench, config, updates, journal=None, **changes):
    """A run with so many updates, and one more batch in its buffer."""
    b = bench(config(run__max_staleness=8, **changes), journal=journal).begin("r0", "r1")
    for version in range(updates):
        for _ in range(2):
            (task,), _ = b.lease(2)
            b.push(task)
        update(b, version)
    for _ in range(2):
        (task,), _ = b.lease(2)
        b.push(task)
    return b


def recovered(b, version, updates=(0,)):
    hello = RegisterTrainer(policy="solver", pid=9, host="h", updates=updates, recovered=version)
    return b.flow.training.enter(hello)


def offer(raas, version, **changes):
    fields = {"transport": "http", "digest": f"d{version}", "size": 1, **changes}
    return OfferVersion(
        raas=raas, policy="solver", version=version, endpoints=[f"http://{raas}"], **fields
    )


def noted(b):
    (status,) = b.flow.status().policies["solver"].recoveries
    return status


def test_with_kept_batches_the_updates_that_the_weights_lack_are_repeated(bench, config):
    b = fed(bench, config, 3, checkpoint__every=8)
    with pytest.raises(Refused, match="batches are kept from update"):
        b.flow.training.register(RegisterTrainer(policy="solver", pid=9, host="h", updates=(7,)))
    answer = recovered(b, 1)
    assert (answer.updates, answer.highest_version) == (1, 3)
    assert (noted(b).of_update, noted(b).again, noted(b).lost) == (1, 2, 0)
    b.announce(4)
    assert b.next_batch(4).id == "solver-000001"
    assert "after update 1; 2 later updates are repeated from the same batches" in noted(b).text
    b.check()


def test_without_kept_batches_the_updates_since_are_lost_and_named(bench, config):
    b = fed(bench, config, 3)
    answer = recovered(b, 2, updates=(0, 1))
    assert answer.updates == 3
    assert (noted(b).again, noted(b).lost, noted(b).optimizer) == (0, 1, 1)
    assert "1 later update is lost; the optimizer has the state after update 1" in noted(b).text
    b.check()


@pytest.mark.parametrize("every", [0, 8])
def test_an_update_that_was_published_but_not_acknowledged_is_not_made_twice(bench, config, every):
    b = fed(bench, config, 2, checkpoint__every=every)
    batch = b.next_batch(2)
    b.announce(3)  # with its update; then the trainer dies
    assert recovered(b, 3).updates == 3
    assert (noted(b).of_update, noted(b).again, noted(b).lost) == (3, 0, 0)
    b.announce(4)
    assert b.state.streams["solver"].last_acknowledged == batch.id
    assert b.next_batch(4) is None
    b.check()


def test_a_restarted_dataflow_knows_of_it(bench, config, tmp_path):
    b = fed(bench, config, 3, tmp_path, checkpoint__every=8)
    b.next_batch(3)
    b.announce(4)
    recovered(b, 4)
    b.announce(5)
    before = b.flow.status().policies["solver"]
    after = b.restart().flow.status().policies["solver"]
    assert (after.recoveries, after.updates) == (before.recoveries, before.updates)
    assert b.state.versions.made("solver", 5) == 4


def test_offers_of_raas_are_listed_newest_first_and_only_those_of_this_run(bench, config):
    b = fed(bench, config, 3)
    recovering = b.flow.recovering
    record = b.state.fleet.get("r0")
    assert not b.renew([], serving=3).offer
    search = recovering.begin(RecoverVersion(policy="solver", wait_s=5))
    assert has_notices(b.state, record)
    assert b.renew([], serving=3).offer == ["solver"]
    assert recovering.silent(search) == ["r0", "r1"]
    (wait,) = [w for w in b.flow.waits() if w.who == "trainer solver"]
    assert wait.for_whom == "r0, r1" and "lost its state" in wait.what
    b.register_raas("r2")
    b.register_raas("r3")
    for answer in (offer("r0", 2), offer("r1", 2), offer("r2", 3, digest="other")):
        recovering.offered(answer)
    recovering.offered(OfferVersion(raas="r3", policy="solver", endpoints=[], error="no file"))
    found = recovering.found(search)
    assert [(v.version, v.endpoints) for v in found.offered] == [(2, ["http://r0", "http://r1"])]
    assert found.announced.version == 3
    assert found.problems == [
        "r2: what it has as version 3 was not announced in this run",
        "r3: no file",
    ]
    recovered(b, 2)
    assert not b.renew([], serving=3).offer


def test_weights_that_are_ahead_of_what_is_to_be_repeated_are_not_offered(bench, config):
    b = fed(bench, config, 4, checkpoint__every=8)
    b.flow.training.register(RegisterTrainer(policy="solver", pid=9, host="h", updates=(1,)))
    search = b.flow.recovering.begin(RecoverVersion(policy="solver", wait_s=5))
    b.flow.recovering.offered(offer("r0", 4))
    found = b.flow.recovering.found(search)
    assert not found.offered and found.announced is None
    assert "more updates than are acknowledged" in found.problems[-1]


def test_the_call_returns_when_all_have_answered_or_after_its_time(bench, config):
    wakeups = Wakeups()
    b = bench(config(), signals=wakeups).begin("r0")
    service = DataflowService(b.flow, wakeups, "t")
    body = messages.encode(RecoverVersion(policy="solver", wait_s=0.1))
    headers = {"Authorization": "Bearer t"}
    silent = TestClient(service.app, headers=headers).post("/v1/versions/recover", content=body)
    found = messages.decode(silent.content, RecoverableVersions)
    assert found.problems == ["r0 did not answer"]

    async def answered():
        transport = httpx.ASGITransport(app=service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://d") as client:
            longer = messages.encode(RecoverVersion(policy="solver", wait_s=30))
            call = asyncio.create_task(
                client.post("/v1/versions/recover", content=longer, headers=headers)
            )
            await asyncio.sleep(0.05)
            told = messages.encode(b.stamped(offer("r0", 0)))
            done = await client.post("/v1/versions/offer", content=told, headers=headers)
            assert done.status_code == 200, done.text
            return (await asyncio.wait_for(call, 5)).content

    found = messages.decode(asyncio.run(answered()), RecoverableVersions)
    assert [version.version for version in found.offered] == [0]
