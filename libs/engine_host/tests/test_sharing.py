"""Runs that share an engine: each has its own adapter and requests, its turn, and nothing of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq.asyncio

from astraflow_core.errors import EngineLost, UserError, WeightsError, WrongVersion
from astraflow_core.types import (
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_engine_host import protocol
from astraflow_engine_host.sharing import attached, main, shared
from astraflow_engine_host.sharing.attached import AttachedEngine, attachment_of
from astraflow_engine_host.sharing.main import SharedEngineSpec
from astraflow_engine_host.sharing.messages import Attachment, encode, run_of, run_token
from astraflow_wire.host.sockets import socket_folder

SECRET = "secret-of-this-engine"


class ScriptedEngine:
    """Samples one token, the first byte of the adapter; requests end when ``go`` is set."""

    logprob_semantics = LogprobSemantics(temperature=True, truncation=False)
    context_length = 64
    most_adapters = 3

    def __init__(self) -> None:
        self.adapters: dict[str, tuple[int, int]] = {}
        self.began: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.go = asyncio.Event()

    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        if source is None:
            del self.adapters[name]
        elif source.base != "base":
            raise WeightsError(f"{source.base} is not the base")
        else:
            self.adapters[name] = source.path.read_bytes()[0], source.version

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        token, version = self.adapters[request.adapter]
        self.began.append(request)
        while not self.go.is_set() and request.id not in self.aborted:
            await asyncio.sleep(0)
        reason: Any = "abort" if request.id in self.aborted else "length"
        return GenerateResult(request.id, *_columns(token, version), reason)

    async def score_adapter(self, name: str, tokens: Any) -> Any:
        return np.full(len(tokens), self.adapters[name][0], np.float32)

    async def abort(self, ids: list[str]) -> None:
        self.aborted += ids

    async def health(self) -> dict[str, float]:
        return {"decode_seconds": 2.0, "tokens_generated": 1e9}

    async def close(self) -> None:
        """As one that was killed: nothing ends."""


def _columns(token: int, version: int) -> tuple[Any, Any, Any]:
    return np.array([token], np.int32), np.zeros(1, np.float32), np.array([version], np.int32)


class Shared:
    """A shared engine, and those that are attached to it."""

    def __init__(self, folder: Path, places: int) -> None:
        self.folder, self.engine = folder, ScriptedEngine()
        self._context = zmq.asyncio.Context()
        self.spec = SharedEngineSpec(
            use="scripted", options={}, model="", address=f"ipc://{folder}/socket", folder=str(folder), secret=SECRET,
            places=places, parent=0,
        )  # fmt: skip
        self._engines: list[AttachedEngine] = []
        self._serving: asyncio.Task[int] | None = None

    def serve(self) -> None:
        self._socket = main._listening(self._context, self.spec.address)
        engine: Any = self.engine
        self._serving = asyncio.create_task(main._serve(self.spec, engine, self._socket))

    async def end(self) -> None:
        assert self._serving is not None
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()

    def attachment(self, run: str, token: str = "") -> Attachment:
        return Attachment(self.spec.address, token or run_token(SECRET, run))

    async def attach(self, run: str, token: str = "") -> AttachedEngine:
        engine = AttachedEngine(self.attachment(run, token))
        self._engines.append(engine)
        await engine.start(Path("model"))
        return engine

    async def load(self, engine: AttachedEngine, token: int, version: int, **keys: Any) -> None:
        file = self.folder / "published"
        file.write_bytes(bytes([token]) * 9)
        source = WeightSource("p", version, file, "d", 9, 0.0, "adapter", "base")
        await engine.load_weights(replace(source, **keys))
        file.unlink()

    async def close(self) -> None:
        self.engine.go.set()
        for engine in self._engines:
            await engine.close()
        await asyncio.sleep(0)
        await self.end()
        self._context.destroy()


@asynccontextmanager
async def sharing(places: int = 8) -> AsyncIterator[Shared]:
    folder = socket_folder()
    made = Shared(folder.path, places)
    made.serve()
    try:
        yield made
    finally:
        await made.close()
        folder.close()


def played(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


def request(name: str, **keys: Any) -> GenerateRequest:
    return GenerateRequest(name, np.array([1, 2], np.int32), Sampling(1), **keys)


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


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


def test_nobody_attaches_without_the_token_of_a_run_or_beyond_what_is_served() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            for wrong in (
                "x", "ada/r:", run_token("another", "ada/r"), run_token(SECRET, "ada/r")[:-1],
                run_token(SECRET, "ada/r").replace("ada", "bob"), f":{run_token(SECRET, '')}", run_token(SECRET, ""),
            ):  # fmt: skip
                with pytest.raises(UserError, match="token"):
                    await here.attach("", wrong)
            for _ in range(ScriptedEngine.most_adapters):
                await here.attach("ada/r")
            with pytest.raises(UserError, match="as many as it can"):
                await here.attach("bob/r")

    played(scenario)


def test_who_is_not_attached_is_refused_and_a_malformed_message_ends_an_attachment() -> None:
    async def scenario() -> None:
        async with sharing() as here:
            with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as stranger:
                stranger.connect(here.spec.address)
                for message in (protocol.Health(3), protocol.Abort(["1"]), protocol.Score(1)):
                    await stranger.send_multipart(encode(message))
                    failed = protocol.decode_from_host((await stranger.recv_multipart())[0])
                    assert isinstance(failed, protocol.Failed) and failed.call == -1, failed
                    assert "attach first" in failed.failure.message
            ada = await here.attach("ada/r")
            await here.load(ada, 7, 1)
            ada._send([b"\xc1"])
            with pytest.raises(EngineLost, match="malformed"):
                while True:
                    await ada.health()
            await until(lambda: not here.engine.adapters)

    played(scenario)


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
            here.serve()  # another one, which knows nobody
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


def test_a_token_is_of_one_run_and_not_shown() -> None:
    token = run_token(SECRET, "ada/a:b.c")
    assert run_of(SECRET, token) == "ada/a:b.c"
    assert token not in repr(Attachment("ipc://x", token))
    told = '{"solver": {"address": "ipc://x", "token": "t"}}'
    name = "ASTRAFLOW_SHARED_ENGINES"
    assert attachment_of("solver", {name: told}) == Attachment("ipc://x", "t")
    assert attachment_of("verifier", {name: told}) is attachment_of("solver", {}) is None
