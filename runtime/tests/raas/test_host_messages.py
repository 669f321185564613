"""What an engine host does with messages, without a process."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from astraflow_core.errors import WireError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_engine_host import protocol
from astraflow_engine_host.main import EngineHost
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings

RESULT = GenerateResult("a", *(np.zeros(4, d) for d in (np.int32, np.float32, np.int32)), "stop")


class Wire:
    """A socket with messages that wait to be read."""

    closed = False

    def __init__(self, *messages):
        self.waiting = [m if isinstance(m, list) else protocol.frames(m) for m in messages]
        self.sent = []

    async def recv_multipart(self):
        if self.waiting:
            return [bytes(part) for part in self.waiting.pop(0)]
        return await asyncio.get_running_loop().create_future()

    async def send_multipart(self, parts):
        self.sent.append(protocol.decode_from_host(bytes(parts[0])))


class Engine:
    """Refuses requests once it is closed, as every engine does."""

    def __init__(self):
        self.asked = []

    async def abort(self, ids):
        if self.asked[-1:] == ["close"]:
            raise RuntimeError("engine 'x' is not running: it was closed")
        self.asked.append(ids)

    async def close(self):
        self.asked.append("close")


def test_a_request_cancelled_after_the_engine_was_closed_is_no_error():
    """Closing ended it already; the RaaS cannot know that when it cancels the request."""
    errors = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))
        engine = Engine()
        wire = Wire(protocol.Abort(["a"]), protocol.Close(1), protocol.Abort(["b"]))
        host = EngineHost(engine, wire)
        serving = asyncio.create_task(host.serve())
        async with asyncio.timeout(10):
            await host.closing.wait()
        await asyncio.sleep(0)
        serving.cancel()
        return engine.asked, wire.sent

    asked, sent = asyncio.run(run())
    assert asked == [["a"], "close"]
    assert [type(message) for message in sent] == [protocol.Reply]
    assert errors == []


CUT = [*protocol.encode_requests([GenerateRequest("a", np.arange(3), Sampling(max_tokens=2))])[:1]]


@pytest.mark.parametrize("message", [[b"\xc1"], [b"\x92\xa5abort\x91\xa1\xff"], CUT, [b""]])
def test_a_host_that_cannot_understand_its_raas_ends_and_says_why(message, caplog):
    """The next host gets the message again; an exception would end this one with a traceback."""

    async def run():
        host = EngineHost(Engine(), Wire(message))
        async with asyncio.timeout(10):
            await host.serve()
        return host.lost.is_set()

    assert asyncio.run(run())
    assert "malformed message" in caplog.text or "number 0 is missing" in caplog.text


class Child:
    """A process that lives until it is killed."""

    pid = os.getpid()

    def __init__(self):
        self.killed = asyncio.Event()

    async def ended(self):
        await self.killed.wait()
        return "was killed"

    def kill(self):
        self.killed.set()


class HostSocket:
    """Says ``message``, and takes everything."""

    closed = False

    def __init__(self, message):
        self.waiting = [[b"peer", *message]]

    async def recv_multipart(self):
        if self.waiting:
            return self.waiting.pop()
        return await asyncio.get_running_loop().create_future()

    def send_multipart(self, parts):
        pass

    def close(self):
        pass


READY = protocol.Ready(64, True, False, 0.5)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ([b"\xc1"], "malformed message of a host"),
        ([b"\x93\xa5reply\x00\x81\xa1\xff\x00"], "malformed message of a host"),
        ([bytes(part) for part in protocol.frames(READY)], "Ready after the start"),
        ([protocol.encode_results([RESULT], {})[0]], "number 0 is missing"),
    ],
)
def test_a_raas_gives_up_a_host_that_it_cannot_understand(make_config, tmp_path, message, told):
    """Its requests are made again elsewhere, and nothing else of the RaaS ends."""

    async def run():
        settings = HostSettings(make_config(), tmp_path, "raas-0", "solver", "", tmp_path)
        host = EngineHostProcess(settings, Child(), HostSocket(message), b"peer", READY)
        life = asyncio.create_task(host.wait_end())
        request = GenerateRequest("a", np.arange(3, dtype=np.int32), Sampling(max_tokens=2))
        async with asyncio.timeout(10):
            with pytest.raises(protocol.HostGone, match=told):
                await host.client.generate(request)
            return await life

    assert told in asyncio.run(run())


def test_an_answer_of_another_length_is_an_error_of_its_call():
    async def run():
        client = HostClient("the host", HostSocket([]), b"peer")
        scoring = asyncio.create_task(client.score(np.arange(3, dtype=np.int32), 10))
        await asyncio.sleep(0)
        client.take(protocol.Reply(0), [bytes(8)])
        with pytest.raises(WireError, match="8 bytes; 3 elements"):
            await scoring

    asyncio.run(run())


def test_a_request_that_names_an_adapter_is_not_sampled_without_it():
    async def run():
        client = HostClient("the host", HostSocket([]), b"peer")
        request = GenerateRequest("a", np.arange(3), Sampling(max_tokens=2), adapter="mine")
        with pytest.raises(ValueError, match="'a' names an adapter, and engine hosts load none"):
            await client.generate(request)

    asyncio.run(run())
