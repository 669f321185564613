"""Rollout services that each do one thing wrong: the example with one realistic mistake.

Run as ``python wrong_raas.py KIND MODEL --port PORT``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "custom_raas"
sys.path.insert(0, str(EXAMPLE))

import raas as example  # noqa: E402

from astraflow_core.wire import auth, client, messages  # noqa: E402


class Hasty(example.Raas):
    """Asks for tasks at once, having nothing to serve them with."""

    async def ask(self, path: str, body: messages.Message, reply: Any) -> Any:
        if isinstance(body, messages.LeaseTasks) and not body.serving:
            body = msgspec.structs.replace(body, free=self.capacity)
        return await super().ask(path, body, reply)


class NewestStamp(example.Raas):
    """Stamps tokens with the newest version that it heard of, not with the one that sampled them."""

    async def play(self, task: messages.Task) -> bytes:
        served, self.engine.version = self.engine.version, max(self.known)
        try:
            return await super().play(task)
        finally:
            self.engine.version = served


class Credulous(example.Raas):
    """Loads whatever arrives, without a look at the digest."""

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
        await self.note()


class Silent(example.Raas):
    """Never renews its leases."""

    async def renew(self) -> None:
        await self.stopped.wait()


class Forgetful(example.Raas):
    """Renews without naming what it holds."""

    async def ask(self, path: str, body: messages.Message, reply: Any) -> Any:
        if isinstance(body, messages.RenewLeases):
            body = msgspec.structs.replace(body, tasks=[])
        return await super().ask(path, body, reply)


class Proud(example.Raas):
    """Takes a 404 for the end of the world."""

    async def ask(self, path: str, body: messages.Message, reply: Any) -> Any:
        answer = await self.post(path, body, reply)
        await self.hear(answer.news)
        return answer


class Restless(example.Raas):
    """Moves on from a pinned version."""

    @property
    def wanted(self) -> int:
        return self.seen


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


class Stubborn(example.Raas):
    """Does not leave."""

    async def hear(self, news: messages.News) -> None:
        await super().hear(msgspec.structs.replace(news, stop=False))


class Impatient(example.Raas):
    """Gives a group up at the first error of the dataflow, and says that the task failed."""

    async def play(self, task: messages.Task) -> bytes:
        body = await super().play(task)
        once = client.Client(self.dataflow.base_url, self.token)
        try:
            await once.post_bytes("/v1/groups", body, messages.GroupPushed, deadline_s=0.3)
        except client.DeadlineExceeded as error:
            raise ValueError(str(error)) from error
        finally:
            await once.aclose()
        return body


class Deaf(example.Raas):
    """Loads weights on its event loop, which takes longer than anybody waits for its health."""

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        time.sleep(5.5)
        await super().swap(entry)


class Vanishing(example.Raas):
    """Ends as soon as it has registered."""

    async def register(self) -> None:
        await super().register()
        raise SystemExit(3)


if __name__ == "__main__":
    kind = globals()[sys.argv.pop(1)]
    example.main(kind)
