"""Runs that share an engine: each has its own adapter and requests, gets its turn, and sees nothing of the others."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import zmq.asyncio
from scripted_sharing import adapter, played, request, sharing, until

from astraflow_core.errors import EngineLost, UserError, WeightsError, WrongVersion
from astraflow_core.types import WeightSource
from astraflow_engine_host import protocol
from astraflow_engine_host.sharing import attached, main, seats, shared
from astraflow_engine_host.sharing.attached import attachment_of
from astraflow_engine_host.sharing.messages import Attachment, LoadAdapter, encode
from astraflow_engine_host.sharing.seats import LiveTokens, user_of


def test_each_run_has_its_own_adapter_requests_and_figures() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada, bob = await here.attach("ada/r"), await here.attach("bob/r")
            with pytest.raises(WrongVersion, match="no adapter"):
                await bob.generate(request("1"))
            await here.load(ada, 7, 1)
            await here.load(bob, 9, 5)
            first = [asyncio.create_task(e.generate(request("1", session="s"))) for e in (ada, bob)]
            await until(lambda: len(here.engine.began) == 2)
            assert (
                len({r.session for r in here.engine.began} - {"s"}) == 2
            )  # no cache of one another
            await here.load(bob, 11, 6)  # requests that run keep theirs
            await bob.abort(["1", "x"])
            result = await first[1]
            assert (result.id, result.finish_reason, result.versions.tolist()) == (
                "1",
                "abort",
                [5],
            )
            here.engine.go.set()
            result = await first[0]
            assert (result.id, result.finish_reason) == ("1", "length")
            assert (result.tokens.tolist(), result.versions.tolist()) == ([7], [1])
            assert (await bob.generate(request("2"))).tokens.tolist() == [11]
            assert (await ada.score(np.zeros(3, np.int32))).tolist() == [7.0] * 3
            health = await ada.health()
            assert (health["tokens_generated"], health["version"], health["decode_seconds"]) == (1, 1, 2.0)  # fmt: skip
            assert not any("published" in str(f) for f in here.folder.iterdir())

    played(scenario)


def test_an_adapter_that_does_not_fit_leaves_the_one_before() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            with pytest.raises(WeightsError, match="not the base"):
                await here.load(ada, 8, 2, base="another")
            with pytest.raises(WeightsError, match="whole model"):
                await here.load(ada, 8, 2, kind="full")
            here.engine.go.set()
            assert (await ada.generate(request("1"))).tokens.tolist() == [7]

    played(scenario)


def test_a_tenant_that_floods_or_asks_for_priority_takes_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "MOST_WAITING", 6)

    async def scenario() -> None:
        async with sharing(places=2) as here:
            flooding = [await here.attach("ada/r"), await here.attach("ada/s")]
            bob = await here.attach("bob/r")
            for engine in (*flooding, bob):
                await here.load(engine, 7, 1)
            asked = [
                asyncio.create_task(engine.generate(request(f"{number}", priority=-9)))
                for engine in flooding
                for number in range(20)
            ]
            await until(lambda: len(here.engine.began) == 2)
            asked += [asyncio.create_task(bob.generate(request(f"{n}"))) for n in range(3)]
            # All have arrived: calls are answered in their order.
            await asyncio.gather(*(engine.health() for engine in (*flooding, bob)))
            here.engine.go.set()
            results = await asyncio.gather(*asked, return_exceptions=True)
            refused = [each for each in results if isinstance(each, ValueError)]
            assert len(refused) == 40 - 2 * 6 and "as many as may" in str(refused[0])
            last = max(n for n, each in enumerate(here.engine.began) if each.adapter == "3")
            assert last <= 6  # every second of the free places
            assert {each.priority for each in here.engine.began} == {0}

    played(scenario)


def test_attaching_needs_a_token_and_an_engine_of_a_raas_attaches_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada = await here.attach("ada/r")
            for wrong in ("x", "token-", "token-1", "ada/r"):
                with pytest.raises(UserError, match="token"):
                    await here.attach("", wrong)
            with pytest.raises(UserError, match="again within"):
                await here.attach("", "token-0")
            await ada.health()
            monkeypatch.setattr(seats, "EVERY_S", 0.0)
            again = await here.attach("", "token-0")
            with pytest.raises(EngineLost, match="another process"):
                while True:
                    await ada.health()
            assert (await again.health())["version"] == -1

    played(scenario)


def test_a_token_ends_with_its_raas_and_so_do_its_requests_and_its_adapter() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada, bob = await here.attach("ada/r"), await here.attach("bob/r")
            for engine in (ada, bob):
                await here.load(engine, 7, 1)
            asked = [asyncio.create_task(e.generate(request("1"))) for e in (ada, bob)]
            await until(lambda: len(here.engine.began) == 2)
            del here.tokens["token-1"]
            here.tell()
            with pytest.raises(EngineLost, match="has ended"):
                await asked[1]
            await until(lambda: len(here.engine.adapters) == 1)
            assert here.engine.aborted == ["2/1"] and not asked[0].done()
            with pytest.raises(UserError, match="ended"):
                await here.attach("", "token-1")
            here.engine.go.set()
            assert (await asked[0]).tokens.tolist() == [7]

    played(scenario)


def test_an_adapter_with_another_digest_leaves_the_one_before() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            with pytest.raises(WeightsError, match="was announced"):
                await here.load(ada, 8, 2, digest="x")
            assert here.engine.adapters == {"1": (7, 1)}
            assert len([*here.folder.glob("*.safetensors")]) == 1

    played(scenario)


def test_adapters_that_are_being_loaded_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada, bob = await here.attach("ada/r"), await here.attach("bob/r")
            go = asyncio.Event()
            load = here.engine.load_adapter

            async def held(name: str, source: WeightSource | None) -> None:
                await go.wait()
                await load(name, source)

            monkeypatch.setattr(here.engine, "load_adapter", held)
            monkeypatch.setattr(shared, "MOST_LOADING", 1.5 * len(adapter(7)))
            loading = asyncio.create_task(here.load(ada, 7, 1))
            await until(lambda: [*here.folder.glob("*.safetensors")])
            call = ada._ask(999, encode(LoadAdapter(999, 2, "", "base"), adapter(8)))
            with pytest.raises(WeightsError, match="another version"):
                await call
            with pytest.raises(WeightsError, match="try later"):
                await bob._ask(999, encode(LoadAdapter(999, 2, "", "base"), adapter(8)))
            go.set()
            await loading
            await here.load(bob, 8, 1)
            assert sorted(here.engine.adapters) == ["1", "2"]

    played(scenario)


def test_scores_take_turns_with_requests() -> None:
    async def scenario() -> None:
        async with sharing(places=1) as here:
            ada, bob = await here.attach("ada/r"), await here.attach("bob/r")
            await here.load(ada, 7, 1)
            await here.load(bob, 9, 1)
            runs = asyncio.create_task(ada.generate(request("1")))
            await until(lambda: here.engine.began)
            scores = [
                asyncio.create_task(engine.score(np.zeros(2, np.int32))) for engine in (ada, bob)
            ]
            for engine in (ada, bob):
                while (await engine.health())["waiting"] != 1:
                    pass
            await ada.close()  # its score ends with its request, and the place is another's
            assert (await scores[1]).tolist() == [9.0, 9.0]
            with pytest.raises(RuntimeError, match="closed"):
                await scores[0]
            await runs

    played(scenario)


def test_who_has_no_token_sends_nothing_and_a_malformed_message_ends_an_attachment() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            token = here.attachment("bob/r").token
            with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as stranger:
                stranger.setsockopt(zmq.LINGER, 0)
                stranger.setsockopt_string(zmq.PLAIN_USERNAME, user_of(token))
                stranger.setsockopt_string(zmq.PLAIN_PASSWORD, token)
                stranger.connect(here.spec.address)
                for message in (protocol.Health(3), protocol.Abort(["1"]), protocol.Score(1)):
                    await stranger.send_multipart(encode(message))
                    failed = protocol.decode_from_host((await stranger.recv_multipart())[0])
                    assert isinstance(failed, protocol.Failed) and failed.call == -1, failed
                    assert "attach first" in failed.failure.message
                with context.socket(zmq.DEALER) as nobody:
                    nobody.setsockopt(zmq.LINGER, 0)
                    events = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL  # fmt: skip
                    monitor = nobody.get_monitor_socket(events)
                    nobody.connect(here.spec.address)
                    nobody.send_multipart(encode(protocol.Health(3)))
                    await monitor.recv_multipart()
                    assert not await nobody.poll(0)
                    nobody.disable_monitor()
                    monitor.close(0)
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            ada._send([b"\xc1"])
            with pytest.raises(EngineLost, match="malformed"):
                while True:
                    await ada.health()
            await until(lambda: not here.engine.adapters)

    played(scenario)


def test_refusals_are_counted_in_few_lines() -> None:
    refusals = seats.SparseLog(10.0)
    assert [refusals.counted(now) for now in (0.0, 1.0, 9.9, 10.0, 11.0, 30.0)] == [1, 0, 0, 3, 0, 2]  # fmt: skip


def test_a_silent_run_loses_its_place_and_a_lost_engine_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attached, "BEAT_S", 0.01)

    async def scenario() -> None:
        async with sharing() as here:
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            waits = asyncio.create_task(ada.generate(request("1")))
            await until(lambda: here.engine.began)
            await here.end()
            here.engine.go.clear()
            here.engine.adapters.clear()
            here.serve()  # another engine host, to which no run is attached
            with pytest.raises(EngineLost, match="attach first"):
                await waits
            with pytest.raises(EngineLost):
                await ada.generate(request("2"))
            bob = await here.attach("bob/r")
            await here.load(bob, 9, 1)
            for task in bob._tasks:
                task.cancel()
            monkeypatch.setattr(shared, "SILENT_S", 0.0)
            monkeypatch.setattr(main, "_LOOK_S", 0.01)
            await until(lambda: not here.engine.adapters)

    monkeypatch.setattr(main, "_LOOK_S", 0.01)
    played(scenario)


def test_a_pause_is_of_the_runs_own_requests() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada, bob = await here.attach("ada/r"), await here.attach("bob/r")
            await here.load(ada, 7, 1)
            await here.load(bob, 9, 1)
            runs = asyncio.create_task(ada.generate(request("1")))
            other = asyncio.create_task(bob.generate(request("1")))
            await until(lambda: len(here.engine.began) == 2)
            await ada.pause("keep")
            held = asyncio.create_task(ada.generate(request("2")))
            await ada.pause("abort")
            assert (await runs).finish_reason == "abort" and not other.done()
            assert not held.done() and len(here.engine.began) == 2
            here.engine.go.set()
            assert (await other).finish_reason == "length"
            await ada.resume()
            assert (await held).tokens.tolist() == [7]

    played(scenario)


def test_a_cancelled_request_ends_in_the_engine() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            asked = asyncio.create_task(ada.generate(request("1")))
            await until(lambda: here.engine.began)
            asked.cancel()
            await until(lambda: here.engine.aborted)
            assert here.engine.aborted == [here.engine.began[0].id]

    played(scenario)


def test_a_request_that_waits_is_aborted_and_a_closed_engine_ends_all() -> None:
    async def scenario() -> None:
        async with sharing(places=1) as here:
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            runs = asyncio.create_task(ada.generate(request("1")))
            await until(lambda: here.engine.began)
            waits = asyncio.create_task(ada.generate(request("2")))
            await asyncio.sleep(0)
            await ada.abort(["2", "1"])
            results = [await waits, await runs]
            assert [(r.id, r.finish_reason, len(r.tokens)) for r in results] == [("2", "abort", 0), ("1", "abort", 1)]  # fmt: skip
            last = asyncio.create_task(ada.generate(request("3")))
            await until(lambda: len(here.engine.began) == 2)
            await ada.close()
            assert (await last).finish_reason == "abort"
            with pytest.raises(RuntimeError, match="closed"):
                await ada.health()
            await until(lambda: not here.engine.adapters and len(here.engine.aborted) == 2)

    played(scenario)


def test_a_token_is_valid_until_it_is_no_longer_listed_and_is_not_shown() -> None:
    tokens = LiveTokens()
    tokens.replace({"a" * 64: "ada/a:b.c"})
    assert tokens.admit("a" * 64, 0.0) == "ada/a:b.c"
    assert tokens.passwords == {user_of("a" * 64): "a" * 64}
    tokens.replace({"b" * 64: "bob/r"})
    with pytest.raises(UserError, match="ended"):
        tokens.admit("a" * 64, 5.0)
    assert "a" * 64 not in repr(Attachment("ipc://x", "a" * 64))
    told = '{"solver": {"address": "ipc://x", "token": "t"}}'
    name = "ASTRAFLOW_SHARED_ENGINES"
    assert attachment_of("solver", {name: told}) == Attachment("ipc://x", "t")
    assert attachment_of("verifier", {name: told}) is attachment_of("solver", {}) is None
