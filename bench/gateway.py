"""Agents with the OpenAI client through the gateway, compared with the same generations requested directly from the engine host.

The first of SmolLM2's thirty layers, with its tokenizer and template, in the engine host of `torch`: a call of the whole
model takes a second of a processor, and there are more than a thousand. A conversation has 3 turns of 16 tokens, at 256 one,
sampled to the end. `tokens_over_direct_at_N`: tokens per second of N conversations at once through client and gateway, over
those of the same prompts (as token ids, with the same sessions) given to the engine host by a loop that does nothing else;
medians of interleaved pairs. `cpu_ms_per_call`: CPU of the process that holds the gateway and the RaaS's half of the engine
protocol, beyond what that loop takes, per call at 32 (8 in a quick run); the agents' own is `agent_cpu_ms_per_call`.
`prefix_share`: the part of the turns after the first whose prompt went on from recorded token ids; the model's template is
append-only.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.server import Gateway
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle, TaskPolicyEngine
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from bench.support.environments import environment
from bench.support.hosted import POLICY, hosted
from bench.support.shallow import shallow
from bench.support.timing import cpu_of, ratio, spread

BASELINES = Path(__file__).parent / "baselines"
AGENT, REQUIREMENTS = BASELINES / "openai_agent.py", BASELINES / "openai_requirements.txt"
MODEL = "pypi:SmolLM2-135M-Instruct"
LAYERS, CONTEXT = 1, 512
ENGINE: dict[str, str | int | float] = {
    "use": "torch", "max_batch": 64, "context_length": CONTEXT, "device": "cpu", "cache_gb": 1.0,
}  # fmt: skip
TURNS, SAMPLING = {1: 3, 8: 3, 32: 3, 256: 1}, Sampling(16, ignore_eos=True)
QUESTION = "Name one thing that floats on water, and say in a few words why it does."
PAIRS, QUICK_PAIRS = {1: 5, 32: 3, 256: 1}, {1: 1, 8: 1}
"""Conversations at once: their turns, and pairs that are measured."""
CPU_AT = (8, 32)
WARM_UP_UP_TO = 8
"""What a round of more conversations would warm up is warm from those before."""


def measure(quick: bool) -> dict[str, float]:
    """Start the engine once, and measure each number of conversations; a quick run has one pair of few."""
    python = environment("openai", REQUIREMENTS)
    model = ModelResolver(Catalog.discover()).resolve_model(MODEL, 0, cache_folder())
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as scratch:
        smaller = shallow(model, Path(scratch) / "model", LAYERS)
        pairs = QUICK_PAIRS if quick else PAIRS
        return asyncio.run(_measured(Path(scratch) / "host", smaller, python, pairs))


@dataclass
class HostEngine:
    """The engine host in the place of a RaaS's replicas, which writes down what it was asked."""

    client: HostClient
    policy: str = POLICY
    serving: int = 0
    stopped_s: float = 0.0
    context_length: int = CONTEXT
    asked: dict[str, list[GenerateRequest]] = field(default_factory=dict)

    async def available(self) -> None:
        """At once."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Ask the host."""
        self.asked.setdefault(request.session, []).append(request)
        return await self.client.generate(request)


@dataclass
class Side:
    """Seconds of wall and of CPU of this process, for each measurement."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def add(self, play: Callable[[], Awaitable[object]]) -> None:
        """Measure ``play``."""
        wall, cpu = time.perf_counter(), time.process_time()
        await play()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


async def _measured(
    folder: Path, model: Path, python: Path, pairs: dict[int, int]
) -> dict[str, float]:
    found: dict[str, float] = {}
    agents = await asyncio.create_subprocess_exec(
        str(python), str(AGENT), stdin=PIPE, stdout=PIPE, stderr=sys.stderr
    )
    try:
        async with hosted(folder, model, **ENGINE) as client, Gateway() as gateway:
            for number, many in pairs.items():
                found |= await _at(number, many, client, gateway, agents, model)
    finally:
        if agents.returncode is None:
            agents.kill()
        await agents.wait()
    return found


async def _at(
    number: int, pairs: int, client: HostClient, gateway: Gateway, agents: Process, model: Path
) -> dict[str, float]:
    """``number`` conversations at once, through the gateway and directly in turn, after a round of each where that is
    short."""
    unmeasured, turns = int(number <= WARM_UP_UP_TO), TURNS[number]
    through, direct = Side(), Side()
    shares: list[float] = []
    agent_cpu = 0.0
    tokenizer = FolderTokenizer(model)
    for pair in range(pairs + unmeasured):
        engine = HostEngine(client)
        handle = PolicyHandle(cast(Replicas, engine), tokenizer)
        task = TaskPolicyEngine(handle, SAMPLING)
        formats, rules = {POLICY: ChatFormat(task)}, Rules(Budget(turns, 1 << 20))
        episodes = [Episode({POLICY: task}, formats, rules, POLICY) for _ in range(number)]
        keys = [gateway.begin(episode) for episode in episodes]
        before = cpu_of(agents.pid)
        await through.add(lambda keys=keys: _ordered(agents, f"{gateway.url}/v1", keys, turns))  # type: ignore[misc]
        agent_cpu = cpu_of(agents.pid) - before
        for key in keys:
            await gateway.end(key)
        continued = sum(each.metrics().get("prompts_continued", 0.0) for each in episodes)
        if turns > 1:
            shares.append(continued / (number * (turns - 1)))
        await direct.add(lambda asked=engine.asked, pair=pair: _replay(client, asked, pair))  # type: ignore[misc]
    found = {
        f"tokens_over_direct_at_{number}": round(
            ratio(direct.wall[unmeasured:], through.wall[unmeasured:]), 3
        ),
        f"tokens_s_at_{number}": round(
            number * turns * SAMPLING.max_tokens / statistics.median(through.wall[unmeasured:]), 1
        ),
    }
    if pairs > 1:
        found[f"spread_at_{number}"] = round(
            spread(direct.wall[unmeasured:], through.wall[unmeasured:]), 3
        )
    if number in CPU_AT:
        beyond = [
            a - b for a, b in zip(through.cpu[unmeasured:], direct.cpu[unmeasured:], strict=True)
        ]
        calls = number * turns
        found["cpu_ms_per_call"] = round(1000 * statistics.median(beyond) / calls, 3)
        found["agent_cpu_ms_per_call"] = round(1000 * agent_cpu / calls, 3)
        found["prefix_share"] = min(shares)
    return found


async def _ordered(agents: Process, url: str, keys: list[str], turns: int) -> None:
    """Let the agents play an episode for each key."""
    assert agents.stdin is not None and agents.stdout is not None
    order = {"base_url": url, "keys": keys, "turns": turns, "question": QUESTION}
    agents.stdin.write(json.dumps(order).encode() + b"\n")
    await agents.stdin.drain()
    line = await asyncio.wait_for(agents.stdout.readline(), 1200)
    if json.loads(line or b"{}").get("calls") != len(keys) * turns:
        raise RuntimeError(f"the agents ended with {agents.returncode}, and said {line!r}")


async def _replay(client: HostClient, asked: dict[str, list[GenerateRequest]], pair: int) -> None:
    """Send the same requests again, those of a session one after the other."""

    async def converse(requests: list[GenerateRequest]) -> None:
        for request in requests:
            again = GenerateRequest(
                f"direct-{pair}-{request.id}",
                np.array(request.prompt),
                request.sampling,
                f"direct-{pair}-{request.session}",
            )
            result = await client.generate(again)
            if len(result.tokens) != request.sampling.max_tokens:
                raise RuntimeError(f"{again.id} sampled {len(result.tokens)} tokens")

    await asyncio.gather(*(converse(requests) for requests in asked.values()))
