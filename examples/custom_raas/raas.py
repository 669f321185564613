"""A rollout service of its own: it speaks the protocol of AstraFlow and shares none of its services.

    python raas.py MODEL --policy solver --name mine --port 19190

The address of the dataflow and the run's token come from ASTRAFLOW_DATAFLOW and ASTRAFLOW_TOKEN. Put your
own engine in the place of the toy; docs/custom-raas.md tells what the rest has to do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
from table_engine import TableEngine

from astraflow_core.wire import client, frames, groups, messages, server

log = logging.getLogger("custom_raas")


class Raas:
    """Registers, leases tasks, renews its leases, pushes groups; follows the versions of one policy."""

    def __init__(self, engine: TableEngine, url: str, token: str, policy: str, name: str) -> None:
        self.engine, self.token, self.policy, self.name = engine, token, policy, name
        self.dataflow, self.capacity, self.renew_s = client.Client(url, token), 32, 1.0
        self.tasks: dict[str, tuple[messages.Task, asyncio.Task[None]]] = {}
        self.known: dict[int, messages.AnnouncementMessage] = {}
        self.seen, self.pins = -1, dict[str, int]()
        self.changed, self.stopped = asyncio.Condition(), asyncio.Event()

    @property
    def serving(self) -> dict[str, int]:
        """Nothing before the first version is loaded."""
        return {self.policy: self.engine.version} if self.engine.version >= 0 else {}

    async def run(self) -> None:
        """Until the dataflow says stop; an error of any part ends all of them."""
        await self.register()
        async with asyncio.TaskGroup() as self.work:
            loops = [
                self.work.create_task(each()) for each in (self.lease, self.renew, self.refresh)
            ]
            await self.stopped.wait()
            for task in (*loops, *(running for _, running in self.tasks.values())):
                task.cancel()
        await self.post("/v1/raas/leave", messages.LeaveRaas(raas=self.name, reason="stopped"))
        await self.dataflow.aclose()

    async def post(self, path: str, body: messages.Message, reply: Any = messages.Done) -> Any:
        """Tries again until the deadline if the dataflow is away for a moment."""
        return await self.dataflow.post(path, body, reply, deadline_s=60.0)

    async def register(self) -> None:
        hello = messages.RegisterRaas(
            raas=self.name, pid=os.getpid(), host=socket.gethostname(), policies=[self.policy],
            capacity=self.capacity,
        )  # fmt: skip
        answer = await self.post("/v1/raas/register", hello, messages.RaasRegistered)
        self.renew_s = answer.renew_s
        await self.hear(answer.news)

    async def ask(self, path: str, body: messages.Message, reply: Any) -> Any:
        """What is answered, its news taken in; None if the dataflow had to be told again who this is."""
        try:
            answer = await self.post(path, body, reply)
        except client.Refused as refused:
            if refused.status != 404:
                raise
            return await self.register()
        await self.hear(answer.news)
        return answer

    async def lease(self) -> None:
        """A long-poll for tasks; for news alone while there is nothing to serve or no room."""
        while True:
            room = self.capacity - sum(task.group_size for task, _ in self.tasks.values())
            asked = messages.LeaseTasks(
                raas=self.name, free=max(0, room) if self.serving else 0, wait_s=1.0,
                serving=self.serving, seen={self.policy: self.seen},
            )  # fmt: skip
            answer = await self.ask("/v1/tasks/lease", asked, messages.TasksLeased)
            for task in answer.tasks if answer else ():
                self.tasks[task.id] = task, self.work.create_task(self.roll_out(task))

    async def renew(self) -> None:
        """The heartbeat."""
        while True:
            await asyncio.sleep(self.renew_s)
            beat = messages.RenewLeases(
                raas=self.name, tasks=list(self.tasks), serving=self.serving,
                seen={self.policy: self.seen},
            )  # fmt: skip
            await self.ask("/v1/tasks/renew", beat, messages.LeasesRenewed)

    async def hear(self, news: messages.News) -> None:
        """Versions to fetch, versions to keep, leases that are lost, and the wish to stop."""
        for entry in news.announcements:
            self.known[entry.version], self.seen = entry, max(self.seen, entry.version)
        self.pins = news.pins
        for lost in news.revoked:
            if lost.task in self.tasks:
                self.tasks[lost.task][1].cancel()
        if news.stop:
            self.stopped.set()
        await self.note()

    async def note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def roll_out(self, task: messages.Task) -> None:
        """A task ends by a push, by a failure that is told, or because its lease is lost."""
        try:
            async with asyncio.timeout(task.deadline_s):
                if (exact := task.pinned.get(self.policy)) is not None:
                    async with self.changed:
                        await self.changed.wait_for(lambda: self.engine.version == exact)
                body = await self.play(task)
            await self.dataflow.post_bytes(
                "/v1/groups", body, messages.GroupPushed, deadline_s=60.0
            )
        except (ValueError, TimeoutError) as error:
            failed = messages.FailTask(
                raas=self.name, task=task.id, error=str(error) or "missed its deadline",
                fatal=isinstance(error, ValueError),
            )  # fmt: skip
            await self.post("/v1/tasks/fail", failed)
        except client.Refused as refused:
            if refused.status != 409:  # the lease was lost meanwhile: nothing to do
                raise
        finally:
            del self.tasks[task.id]
            await self.note()

    async def play(self, task: messages.Task) -> bytes:
        """The group: prompts and completions as the token ids that were given and sampled, never text."""
        prompt = self.engine.encode(task.data["prompt"])
        headers: list[groups.SequenceHeader] = []
        rows: list[tuple[Any, ...]] = []
        for index in range(task.group_size):
            tokens, logprobs, versions = await self.engine.generate(prompt, task.sampling)
            reward = self.reward(str(task.data.get("answer", "")), self.engine.decode(tokens))
            length, cut = len(prompt) + len(tokens), tokens[-1] != self.engine.end
            headers.append(
                groups.SequenceHeader(self.policy, length, reward, index, cut, min(versions))
            )
            rows += zip(
                prompt, [0] * len(prompt), [0.0] * len(prompt), [-1] * len(prompt), strict=True
            )
            rows += zip(tokens, [1] * len(tokens), logprobs, versions, strict=True)
        header = groups.GroupHeader(
            raas=self.name, task=task.id, prompt_id=task.prompt_id, sequences=headers,
            trajectories=task.group_size, eval_set=task.eval_set,
        )  # fmt: skip
        kinds = (np.int32, np.uint8, np.float32, np.int32)
        columns = zip(zip(*rows, strict=True), kinds, strict=True)
        return frames.encode_frame(header, [np.array(column, kind) for column, kind in columns])

    def reward(self, answer: str, text: str) -> float:
        """The share of characters that are right."""
        return sum(a == b for a, b in zip(text, answer, strict=False)) / max(
            len(text), len(answer), 1
        )

    @property
    def wanted(self) -> int:
        """The version that a task needs exactly, else the pinned one, else the newest."""
        held = [task.pinned[self.policy] for task, _ in self.tasks.values() if task.pinned]
        return held[0] if held else self.pins.get(self.policy, self.seen)

    async def refresh(self) -> None:
        """Follow the versions. Whatever fails is tried again later."""
        while True:
            if self.wanted != self.engine.version and self.wanted in self.known:
                await self.swap(self.known[self.wanted])
            async with self.changed:
                await self.changed.wait()

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        try:
            # In a thread: the event loop answers meanwhile, and requests in flight go on.
            logits = await asyncio.to_thread(self.engine.load, entry, self.token)
        except (OSError, ValueError) as error:
            log.warning("%s stays at version %d: %s", self.name, self.engine.version, error)
            return
        if self.wanted == entry.version:
            self.engine.logits, self.engine.version = logits, entry.version
            await self.note()


async def serve(raas: Raas, port: int) -> None:
    """Run it beside its own `GET /v1/health`."""
    app = server.create_app("custom RaaS", raas.token, 1 << 20)
    app.add_api_route("/v1/health", lambda: {"status": "ready" if raas.serving else "starting"})
    monitor = server.Server(app, "127.0.0.1", port)
    await monitor.start()
    try:
        await raas.run()
    finally:
        await monitor.stop()


def main(kind: type[Raas] = Raas) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="Hugging Face folder: tokenizer.json, config.json")
    parser.add_argument("--policy", default="solver")
    parser.add_argument("--name", default="custom")
    parser.add_argument("--port", type=int, default=0, help="of /v1/health on loopback")
    asked = parser.parse_args()
    url, token = os.environ["ASTRAFLOW_DATAFLOW"], os.environ.get("ASTRAFLOW_TOKEN", "")

    async def start() -> None:
        await serve(
            kind(TableEngine(asked.model), url, token, asked.policy, asked.name), asked.port
        )

    asyncio.run(start())


if __name__ == "__main__":
    main()
