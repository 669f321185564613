"""What an engine host does with messages, without a process."""

from __future__ import annotations

import asyncio

from astraflow_core.raas import host_protocol as protocol
from astraflow_core.raas.engine_host import EngineHost


class Wire:
    """A socket with messages that wait to be read."""

    def __init__(self, *messages):
        self.waiting = [protocol.frames(message) for message in messages]
        self.sent = []

    async def recv_multipart(self):
        if self.waiting:
            return [bytes(part) for part in self.waiting.pop(0)]
        return await asyncio.get_running_loop().create_future()

    async def send_multipart(self, parts):
        self.sent.append(protocol.decode_from_host(bytes(parts[0])))


class Engine:
    """Refuses to be asked once it is closed, as every engine does."""

    def __init__(self):
        self.asked = []

    async def abort(self, ids):
        if self.asked[-1:] == ["close"]:
            raise RuntimeError("engine 'x' is not running: it was closed")
        self.asked.append(ids)

    async def close(self):
        self.asked.append("close")


def test_a_request_given_up_after_the_engine_was_closed_is_nobodys_error():
    """Closing ended it already; the RaaS cannot know that when it gives the request up."""
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
