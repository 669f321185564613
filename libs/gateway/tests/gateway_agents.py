"""Agents that call a gateway whose policies are scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from chat_templates import TEMPLATES

from astraflow_core.types import Sampling
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.server import Gateway
from astraflow_testing.scripted_policies import ScriptedPolicies

QWEN, LLAMA, MISTRAL = TEMPLATES[0], TEMPLATES[4], TEMPLATES[6]
THINKING = TEMPLATES[1]
USER = {"role": "user", "content": "what is 1 + 22?"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
AMPLE = Budget(100, 10_000)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Agent:
    """A client with the key of an episode, and that episode."""

    def __init__(self, client: httpx.AsyncClient, gateway: Gateway, episode: Episode) -> None:
        self.client, self.gateway, self.episode = client, gateway, episode
        self.key = gateway.begin(episode)

    async def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        given = {"authorization": f"Bearer {self.key}", **(headers or {})}
        content = body if isinstance(body, bytes) else json.dumps(body)
        return await self.client.post(self.gateway.url + path, content=content, headers=given)

    async def chat(self, *messages: Any, **more: Any) -> Any:
        body = {"model": "p", "messages": messages, **more}
        response = await self.post("/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, body: Any) -> tuple[int, dict[str, Any]]:
        response = await self.post("/v1/chat/completions", body)
        return response.status_code, response.json()["error"]


@asynccontextmanager
async def agent_of(
    policies: ScriptedPolicies, budget: Budget = AMPLE, **rules: Any
) -> AsyncIterator[Agent]:
    engines = policies.engines()
    formats = {name: ChatFormat(engine) for name, engine in engines.items()}
    async with Gateway() as gateway, httpx.AsyncClient(timeout=20) as client:
        yield Agent(client, gateway, Episode(engines, formats, Rules(budget, **rules), "p"))


def played(
    says: Any,
    play: Callable[[Agent], Awaitable[None]],
    template: Any = QWEN,
    policies: tuple[str, ...] = ("p",),
    **rules: Any,
) -> Episode:
    """The episode in which ``play`` is the agent and each policy replies with ``says``."""

    async def run() -> Episode:
        script = says if callable(says) else dict.fromkeys(policies, says)
        scripted = ScriptedPolicies(
            policies,
            says=script,
            tokenizer=template.tokenizer(),
            sampling=Sampling(max_tokens=400),
        )
        async with agent_of(scripted, **rules) as agent:
            agent.episode.asked = scripted.asked  # type: ignore[attr-defined]
            await play(agent)
            return agent.episode

    return asyncio.run(run())
