"""Which replica gets a request, and control that reaches all of them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_engine import LocalEngine, replicas_of

from astraflow_core.errors import WrongVersion
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.replicas import Replicas

pytestmark = pytest.mark.timeout(20)
PROMPT = np.array([14, 3, 4], np.int32)


def request(identifier="r", pinned=None, session="", tokens=2):
    return GenerateRequest(
        identifier, PROMPT, Sampling(tokens), session=session, pinned_version=pinned
    )


def at(*versions, **settings):
    """Replicas that serve the given versions; each may be changed in ``.versions``."""
    served = list(versions)
    engines = [LocalEngine(number=number) for number in range(len(versions))]
    members = [
        Replica(number, engine, lambda number=number: served[number])
        for number, engine in enumerate(engines)
    ]
    replicas = Replicas(members, **settings)
    replicas.versions = served
    return replicas


def chosen(replicas, session="", pinned=None):
    found = replicas.choose(session, pinned)
    return None if found is None else found.number


def busy(replicas, *pending):
    for member, count in zip(replicas.members, pending, strict=True):
        member.engine.host.client.pending = count


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 5), st.sampled_from([None, 3, 4])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, 3, 4]),
)
def test_the_one_with_most_room_for_its_size_among_those_at_the_version(states, pinned):
    replicas = at(*(version for _, _, version in states))
    for member, (pending, capacity, _) in zip(replicas.members, states, strict=True):
        member.engine.host.client.pending = pending
        member.gauges = {"max_running": float(capacity)}
    able = {
        number: (pending + 1) / capacity
        for number, (pending, capacity, version) in enumerate(states)
        if version is not None and pinned in (None, version)
    }
    found = chosen(replicas, pinned=pinned)
    assert (found is None) == (not able)
    if able:
        assert able[found] == min(able.values())


def test_equal_loads_take_turns():
    async def scenario():
        replicas = at(0, 0, 0)
        for number in range(6):
            await replicas.generate(request(str(number)))
        return [member.routed for member in replicas.members]

    assert asyncio.run(scenario()) == [2, 2, 2]


def test_a_session_stays_where_its_cache_is_until_that_replica_is_gone():
    replicas = at(0, 0)
    busy(replicas, 1, 0)
    assert chosen(replicas, "talk") == 1
    busy(replicas, 0, 9)
    assert chosen(replicas, "talk") == 1 and chosen(replicas, "other") == 0
    assert chosen(replicas) == 0
    replicas.members[1].engine.die()
    assert chosen(replicas, "talk") == 0
    replicas.members[1].engine.start()
    busy(replicas, 5, 0)
    assert chosen(replicas, "talk") == 0, "its cache is there now"


def test_sessions_that_were_not_used_for_long_are_forgotten(monkeypatch):
    monkeypatch.setattr("astraflow_runtime.raas.engines.replicas.SESSIONS", 2)
    replicas = at(0, 0)
    busy(replicas, 0, 1)
    for session in ("a", "b", "a", "c"):
        assert chosen(replicas, session) == 0
    busy(replicas, 1, 0)
    assert [chosen(replicas, session) for session in ("a", "b")] == [0, 1]


def test_one_that_is_silent_gets_requests_only_if_all_are():
    replicas = at(0, 0)
    busy(replicas, 0, 7)
    replicas.members[0].engine.host.silence = "stopped"
    assert chosen(replicas) == 1 and replicas.answering == 0.5
    replicas.members[1].engine.host.silence = "stopped"
    assert chosen(replicas) == 0 and replicas.answering == 0


def test_a_pinned_request_waits_for_a_replica_at_its_version():
    async def scenario():
        replicas = at(4, 5)
        asked = asyncio.create_task(replicas.generate(request(pinned=6)))
        free = asyncio.create_task(replicas.generate(request("free", pinned=5)))
        await asyncio.sleep(0.02)
        assert not asked.done()
        # What this engine samples is its own version, 0: the pin is the router's affair here.
        replicas.members[1].engine.host.client.engine.version = 6
        replicas.versions[1] = 6
        replicas.changed()
        result = await asked
        with pytest.raises(WrongVersion, match="pinned to 5, serving 0"):
            await free
        return result, [member.routed for member in replicas.members]

    result, routed = asyncio.run(scenario())
    assert result.versions.tolist() == [6, 6] and routed == [0, 2]


def test_a_pin_that_no_replica_reaches_ends_at_its_deadline():
    replicas = at(4, 5, pin_wait_s=0.05)
    with pytest.raises(
        WrongVersion, match=r"pinned to version 3 of policy 'solver'.*\(they serve 4, 5\)"
    ):
        asyncio.run(replicas.generate(request(pinned=3)))


def test_a_replica_that_dies_takes_only_its_own_requests_and_they_go_to_another():
    async def scenario():
        replicas = at(0, 0)
        first, second = (member.engine for member in replicas.members)
        dies = asyncio.Event()

        async def generate(one):
            await dies.wait()
            first.host.client.lost = "was killed"
            raise HostGone("the engine host was killed")

        first.generate = generate
        asked = [asyncio.create_task(replicas.generate(request(str(n)))) for n in range(4)]
        await asyncio.sleep(0.01)
        dies.set()
        results = await asyncio.gather(*asked)
        assert [member.state() for member in replicas.members] == ["starting", "serving"]
        return results, [member.routed for member in replicas.members], second

    results, routed, _ = asyncio.run(scenario())
    assert [result.id for result in results] == ["0", "1", "2", "3"]
    assert sum(routed) - routed[0] == 4 and routed[0] >= 1


def test_control_reaches_every_replica_and_tells_what_each_did():
    async def scenario():
        replicas = at(0, 0, 0)
        replicas.members[1].engine.die()
        said = await replicas.to_all(lambda client: client.pause("keep", 1.0))
        return replicas, said

    replicas, said = asyncio.run(scenario())
    assert said[0] is None and said[2] is None and isinstance(said[1], HostGone)
    assert [replicas.members[n].engine.host.client.calls for n in (0, 2)] == [["pause keep"]] * 2


def test_the_figures_of_replicas_add_up_where_that_means_something():
    replicas = at(3, 5)
    replicas.members[0].gauges = {"running": 2.0, "version": 3.0, "kv_cache_usage": 0.4}
    replicas.members[1].gauges = {"running": 5.0, "version": 5.0, "kv_cache_usage": 0.7}
    assert replicas.gauges() == {"running": 7.0, "version": 3.0, "kv_cache_usage": 0.7}
    assert replicas.serving == 3
    replicas.members[0].engine.die()
    assert replicas.pressure() == replicas.members[1].gauges
    replicas.versions[:] = [None, None]
    assert replicas.serving is None and replicas.choose("", None) is None
    assert replicas_of(LocalEngine()).serving == 0
