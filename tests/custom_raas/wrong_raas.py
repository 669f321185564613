"""Rollout services that each do one thing wrong: the example with one realistic mistake.

Run as ``python wrong_raas.py KIND MODEL --port PORT``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "custom_raas"
sys.path.insert(0, str(EXAMPLE))

import raas as example  # noqa: E402

from astraflow_wire import messages  # noqa: E402
from astraflow_wire.frames import Frame, decode_header, encode_frame  # noqa: E402
from astraflow_wire.groups import GroupHeader  # noqa: E402
from astraflow_wire.http import auth, client  # noqa: E402


class Hasty(example.Raas):
    """Asks for tasks at once, having nothing to serve them with."""

    @property
    def free(self) -> int:
        return super().free if self.serving else self.capacity


class NewestStamp(example.Raas):
    """Stamps tokens with the newest version that it knows, not with the one that sampled them."""

    async def play(self, task: messages.Task) -> bytes:
        served, self.engine.version = self.engine.version, max(self.known)
        try:
            return await super().play(task)
        finally:
            self.engine.version = served


class Credulous(example.Raas):
    """Loads every file without checking its digest."""

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        def fetch() -> np.ndarray:
            import urllib.request

            url = f"{entry.endpoints[0]}/v1/weights/{entry.policy}/{entry.version}/data"
            asked = urllib.request.Request(url, headers=auth.bearer(self.token))
            with urllib.request.urlopen(asked, timeout=30) as response:
                return load(response.read())["logits"]

        try:
            logits = await asyncio.to_thread(fetch)
        except OSError:
            return
        if self.wanted == entry.version:
            self.engine.logits, self.engine.version = logits, entry.version


class Fragile(example.Raas):
    """Ends when the weights of a version cannot be had."""

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        logits = await asyncio.to_thread(self.engine.load, entry, self.token)
        self.engine.logits, self.engine.version = logits, entry.version


class Silent(example.Raas):
    """Never renews its leases."""

    async def renew(self) -> None:
        await self.stopped.wait()


class Forgetful(example.Raas):
    """Renews without naming what it holds."""

    async def renew(self) -> None:
        while True:
            await asyncio.sleep(self.dataflow.renew_s)
            await self.dataflow.renew([], self.serving, self.seen)


class Proud(example.Raas):
    """Ends at a 404 instead of registering again."""

    async def lease(self) -> None:
        self.dataflow.register = self.give_up
        await super().lease()

    async def give_up(self, deadline_s: float | None = None) -> None:
        raise client.Refused(404, "no longer known")


class Restless(example.Raas):
    """Moves on from a pinned version."""

    @property
    def wanted(self) -> int:
        return self.seen[self.policy]


class Dropping(example.Raas):
    """Drops what is in flight when another version is loaded."""

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        for _, running in self.tasks.values():
            running.cancel()
        await super().swap(entry)

    async def play(self, task: messages.Task) -> bytes:
        while self.wanted != self.engine.version:  # as slow as an engine that samples for long
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return await super().play(task)


class Boundless(example.Raas):
    """Cuts a request that is too long instead of refusing it."""

    async def play(self, task: messages.Task) -> bytes:
        most = min(task.sampling.max_tokens, 16)
        sampling = msgspec.structs.replace(task.sampling, max_tokens=most)
        return await super().play(msgspec.structs.replace(task, sampling=sampling))


class Hoarding(example.Raas):
    """Keeps weights that the run has lost."""

    def apply(self, notices: messages.Notices) -> None:
        super().apply(msgspec.structs.replace(notices, discard={}))


class Reckless(example.Raas):
    """Discards weights, and goes on with what it had begun with them."""

    def apply(self, notices: messages.Notices) -> None:
        if notices.discard and self.known:
            self.known, self.engine.version = {}, -1
        super().apply(msgspec.structs.replace(notices, discard={}, revoked=[]))


class Stubborn(example.Raas):
    """Does not leave."""

    def apply(self, notices: messages.Notices) -> None:
        super().apply(msgspec.structs.replace(notices, stop=False))


class Impatient(example.Raas):
    """Gives a group up at the first error of the dataflow, and says that the task failed."""

    async def play(self, task: messages.Task) -> bytes:
        body = await super().play(task)
        once = client.AsyncClient(self.http.base_url, self.token)
        try:
            await once.post_bytes("/v1/groups", body, messages.GroupPushed, deadline_s=0.3)
        except client.DeadlineExceeded as error:
            raise ValueError(str(error)) from error
        finally:
            await once.aclose()
        return body


class Deaf(example.Raas):
    """Loads weights on its event loop, which takes longer than the deadline of its health check."""

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        time.sleep(5.5)
        await super().swap(entry)


class Garbled(example.Raas):
    """Pushes log-probs that are not numbers."""

    async def play(self, task: messages.Task) -> bytes:
        body = bytearray(await super().play(task))
        frame = Frame(body)
        columns = [np.frombuffer(buffer, np.uint8).copy() for buffer in frame.buffers]
        columns[2].view(np.float32)[:] = np.nan
        return encode_frame(decode_header(frame, GroupHeader), columns)


class Changeless(example.Raas):
    """Keeps the incarnation of its first registration."""

    def apply(self, notices: messages.Notices) -> None:
        self.dataflow.incarnation = 1
        super().apply(notices)


class Vanishing(example.Raas):
    """Ends as soon as it has registered."""

    async def run(self) -> None:
        await self.dataflow.register()
        raise SystemExit(3)


if __name__ == "__main__":
    kind = globals()[sys.argv.pop(1)]
    example.main(kind)
