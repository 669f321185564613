"""A live service for tests: it opens an episode for each slot that is leased, asks every policy twice, and rewards it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from astraflow_contrib_online.workflow import OnlineWorkflow
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import Prompt, Trajectory


class Service:
    """A client of the gateway that the run in ``run`` has announced."""

    def __init__(self, client: aiohttp.ClientSession, run: Path) -> None:
        (file,) = (run / "online").glob("*.json")
        self._client, self.url = client, json.loads(file.read_text())["url"]
        self.token = (run / "online" / "token").read_text().strip()

    async def call(
        self, method: str, path: str, body: Any = None, token: str | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON and headers."""
        headers = {"authorization": f"Bearer {self.token if token is None else token}"}
        url = f"{self.url}/v1/{path}"
        async with self._client.request(method, url, json=body, headers=headers) as response:
            raw = await response.read()
            return response.status, json.loads(raw) if raw else None, response.headers

    async def opened(self) -> Any:
        """An open episode, as soon as a slot is free."""
        while True:
            status, told, _ = await self.call("POST", "episodes")
            if status == 201:
                return told
            assert status == 503, told
            await asyncio.sleep(0.01)

    async def ask(self, episode: Any, model: str, *said: str) -> tuple[int, Any]:
        """Chat with a policy."""
        roles = ("user", "assistant", "user")
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, said, strict=False)
        ]
        body = {"model": model, "messages": messages}
        status, told, _ = await self.call("POST", "chat/completions", body, episode["api_key"])
        return status, told

    async def reward(self, episode: Any, **body: Any) -> tuple[int, Any]:
        """Reward an episode."""
        status, told, _ = await self.call("POST", f"episodes/{episode['id']}/reward", body)
        return status, told


class VisitedWorkflow(OnlineWorkflow):
    """Each episode has a visitor."""

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        await self._started()
        visiting = asyncio.create_task(self._visit())
        try:
            return await super().run_episode(engines, prompt)
        finally:
            visiting.cancel()
            await asyncio.gather(visiting, return_exceptions=True)

    async def _visit(self) -> None:
        async with aiohttp.ClientSession() as client:
            service = Service(client, self._run)
            episode = await service.opened()
            for model in episode["models"]:
                status, told = await service.ask(episode, model, "a door")
                if status != 200:
                    return
                said = told["choices"][0]["message"]["content"]
                if (await service.ask(episode, model, "a door", said, "sure?"))[0] != 200:
                    return
            await service.reward(episode, reward=1.0)
