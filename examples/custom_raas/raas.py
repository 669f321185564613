"""A standalone rollout service: it implements the protocol of AstraFlow and uses none of its services.

    python raas.py MODEL --policy solver --name mine --port 19190

The address of the dataflow and the run's token come from ASTRAFLOW_DATAFLOW and ASTRAFLOW_TOKEN. Replace the toy engine
by your own; docs/custom-raas.md describes what the rest has to do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path

from table_engine import TableEngine

from astraflow_wire import completions, messages
from astraflow_wire.http import client, raas_client, server

log = logging.getLogger("custom_raas")
Versions = dict[str, int]


class Raas:
    """Registers, leases tasks, renews its leases, pushes groups; follows the versions of one policy."""

    def __init__(self, engine: TableEngine, url: str, token: str, policy: str, name: str) -> None:
        self.engine, self.token, self.policy, self.name = engine, token, policy, name
        self.http, self.capacity = client.AsyncClient(url, token), 32
        self.dataflow = raas_client.RaasClient(self.http, name, [policy], self.capacity, self.apply)
        self.tasks: dict[str, tuple[messages.Task, asyncio.Task[None]]] = {}
        self.known: dict[int, messages.AnnouncementMessage] = {}
        self.pins, self.notices, self.stopped = Versions(), asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Run until the dataflow requests a stop; an error of any part ends all of them."""
        await self.dataflow.register()
        async with asyncio.TaskGroup() as self.work:
            loops = [self.work.create_task(f()) for f in (self.lease, self.renew, self.refresh)]
            await self.stopped.wait()
            for task in (*loops, *(running for _, running in self.tasks.values())):
                task.cancel()
        await self.dataflow.leave("stopped")
        await self.http.aclose()

    @property
    def serving(self) -> Versions:
        """Nothing before the first version is loaded."""
        return {self.policy: self.engine.version} if self.engine.version >= 0 else {}

    @property
    def seen(self) -> Versions:
        """The newest version known."""
        return {self.policy: max(self.known, default=-1)}

    @property
    def free(self) -> int:
        """Episodes to ask for: none while there is nothing to serve."""
        room = self.capacity - sum(task.group_size for task, _ in self.tasks.values())
        return max(0, room) if self.serving else 0

    async def lease(self) -> None:
        """A long-poll for tasks; for notices alone while nothing is free."""
        while True:
            for task in await self.dataflow.lease(self.free, 1.0, self.serving, self.seen):
                self.tasks[task.id] = task, self.work.create_task(self.roll_out(task))

    async def renew(self) -> None:
        """The heartbeat."""
        while True:
            await asyncio.sleep(self.dataflow.renew_s)
            await self.dataflow.renew(list(self.tasks), self.serving, self.seen)

    def apply(self, notices: messages.Notices) -> None:
        """Apply notices: versions to fetch, keep or discard, revoked leases, and the request to stop."""
        if notices.discard and self.known:  # the journal lost them; others will have their numbers
            self.known, self.engine.version = {}, -1
            for _, running in self.tasks.values():
                running.cancel()
        self.known |= {entry.version: entry for entry in notices.announcements}
        self.pins = notices.pins
        for lost in notices.revoked:
            if lost.task in self.tasks:
                self.tasks[lost.task][1].cancel()
        if notices.stop:
            self.stopped.set()
        self.notices.set()

    async def roll_out(self, task: messages.Task) -> None:
        """Roll out a task. It ends by a push, by a reported failure, or because its lease is lost."""
        try:
            async with asyncio.timeout(task.deadline_s):
                body = await self.play(task)
            await self.dataflow.push(body)
        except ValueError as error:
            await self.dataflow.fail(task.id, str(error), fatal=True)
        except TimeoutError:
            await self.dataflow.fail(task.id, f"missed its deadline of {task.deadline_s:g} s")
        finally:
            del self.tasks[task.id]
            self.notices.set()

    async def play(self, task: messages.Task) -> bytes:
        """The group: prompts and completions as the token ids that were given and sampled, never text."""
        while task.pinned.get(self.policy, self.engine.version) != self.engine.version:
            await asyncio.sleep(0.01)
        prompt, incarnation = self.engine.encode(task.data["prompt"]), self.dataflow.incarnation
        episodes = list[completions.Sampled]()
        for _ in range(task.group_size):
            tokens, logprobs, versions = await self.engine.generate(prompt, task.sampling)
            reward = self.reward(str(task.data.get("answer", "")), self.engine.decode(tokens))
            cut = tokens[-1] != self.engine.end
            episodes.append(completions.Sampled(tokens, logprobs, versions, reward, cut))
        return completions.encode_completions(
            self.name, task, self.policy, prompt, episodes, incarnation=incarnation
        )

    def reward(self, answer: str, text: str) -> float:
        """The share of characters that are right."""
        return sum(map(str.__eq__, text, answer)) / max(len(text), len(answer), 1)

    @property
    def wanted(self) -> int:
        """The version that a task needs exactly, else the pinned one, else the newest."""
        held = [task.pinned[self.policy] for task, _ in self.tasks.values() if task.pinned]
        return held[0] if held else self.pins.get(self.policy, self.seen[self.policy])

    async def refresh(self) -> None:
        """Follow the versions. Whatever fails is tried again when there are notices."""
        while True:
            self.notices.clear()
            if self.wanted != self.engine.version and self.wanted in self.known:
                await self.swap(self.known[self.wanted])
            await self.notices.wait()

    async def swap(self, entry: messages.AnnouncementMessage) -> None:
        try:
            # In a thread: the event loop answers meanwhile, and requests in flight continue.
            logits = await asyncio.to_thread(self.engine.load, entry, self.token)
        except (OSError, ValueError) as error:
            log.warning("%s stays at version %d: %s", self.name, self.engine.version, error)
            return
        if self.wanted == entry.version:
            self.engine.logits, self.engine.version = logits, entry.version


async def serve(raas: Raas, port: int) -> None:
    """Run it beside its own `GET /v1/health`."""
    app = server.create_app("custom RaaS", raas.token, 1 << 20)
    app.add_api_route("/v1/health", lambda: {"serving": raas.serving})
    async with server.Server(app, "127.0.0.1", port):
        await raas.run()


def main(kind: type[Raas] = Raas) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="Hugging Face folder: tokenizer.json, config.json")
    parser.add_argument("--policy", default="solver")
    parser.add_argument("--name", default="custom")
    parser.add_argument("--port", type=int, default=0, help="of /v1/health on loopback")
    asked = parser.parse_args()
    url, token = os.environ["ASTRAFLOW_DATAFLOW"], os.environ.get("ASTRAFLOW_TOKEN", "")
    raas = kind(TableEngine(asked.model), url, token, asked.policy, asked.name)
    asyncio.run(serve(raas, asked.port))


if __name__ == "__main__":
    main()
