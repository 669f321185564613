"""What agents trained on at the gateway has the log-probs that a real engine gives the same ids."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from astraflow_core.types import (
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    RunInfo,
    Sampling,
    WeightSource,
)
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.server import Gateway
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle, TaskPolicyEngine
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_tiny_model.folder import write_tiny_model

pytestmark = pytest.mark.slow

CONTEXT, MOST = 160, 12
CLOSE = 1e-4


@dataclass
class Engine:
    """An engine in the place of a RaaS's replicas, which counts what it samples."""

    engine: Any
    sampled: int = 0
    policy: str = "solver"
    serving: int = 0
    stopped_s: float = 0.0
    context_length: int = CONTEXT

    async def available(self) -> None:
        """At once."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Ask the engine."""
        result: GenerateResult = await self.engine.generate(request)
        self.sampled += len(result.tokens)
        return result


async def _played(client: httpx.AsyncClient, key: str, number: int) -> None:
    """Chats of three turns: in two dialects, with a stop, and with two replies to one question."""
    headers = {"authorization": f"Bearer {key}"}
    said: list[dict[str, str]] = []
    for turn in range(3):
        said.append({"role": "user", "content": f"{number}+{turn}="})
        more: dict[str, Any] = {"stop": ["7"]} if number == 1 else {}
        more |= {"n": 2} if number == 2 else {}
        body = {"messages": said, "max_tokens": MOST, **more}
        route = "/v1/messages" if number == 3 else "/v1/chat/completions"
        reply = await client.post(route, json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        if number == 3:
            text = "".join(block["text"] for block in reply.json()["content"])
        else:
            text = reply.json()["choices"][0]["message"]["content"] or ""
        said.append({"role": "assistant", "content": text})


def test_logprobs_are_those_of_the_engine_s_score(tmp_path: Path) -> None:
    from astraflow_plugin_torch_engine.config import TorchEngineConfig
    from astraflow_plugin_torch_engine.engine import TorchEngine

    folder = write_tiny_model(tmp_path / "model", context=CONTEXT, init_std=0.3)

    async def run() -> None:
        info = RunInfo("test", 0, 1, 1, ("solver",), tmp_path)
        context = ComponentContext(info, "raas", "solver", 0, tmp_path)
        bare = TorchEngine(TorchEngineConfig(device="cpu"), context)
        await bare.start(folder)
        try:
            file = folder / "model.safetensors"
            await bare.load_weights(WeightSource("solver", 0, file, "", 0, 0.0))
            engine = Engine(bare)
            handle = PolicyHandle(cast(Replicas, engine), FolderTokenizer(folder))
            task = TaskPolicyEngine(handle, Sampling(MOST))
            rules = Rules(Budget(100, 10_000))
            trained, outcomes = 0, Counter[str]()
            async with Gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
                for number in range(4):
                    engines = {"solver": task}
                    formats = {"solver": ChatFormat(task)}
                    episode = Episode(engines, formats, rules, "solver")
                    key = gateway.begin(episode)
                    await _played(client, key, number)
                    await gateway.end(key)
                    outcomes += episode.outcomes
                    for sequence in episode.sequences():
                        mask = sequence.loss_mask
                        scores = await bare.score(sequence.tokens)
                        wrong = np.abs(scores - sequence.logprobs)[mask]
                        assert wrong.max() < CLOSE, (number, wrong.max())
                        assert (sequence.versions[mask] == 0).all()
                        trained += int(mask.sum())
            assert trained == engine.sampled > 0
            assert outcomes["continued"] and outcomes["first"], outcomes
        finally:
            await bare.close()

    asyncio.run(run())
