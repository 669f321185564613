"""Components for the tests, named in configs as ``fake_parts:NAME``: an engine without a model, a transport
without a network, workflows and rewards that behave as a test wants."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import numpy as np

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import EngineLost, UserError, WeightsError, WrongVersion
from astraflow_core.types import (
    GenerateResult,
    Link,
    LogprobSemantics,
    RewardReport,
    Trajectory,
    WeightSource,
)


class EngineConfig(ConfigModel):
    start_s: float = 0.0
    block_s: float = 0.0
    token_s: float = 0.0
    load_s: float = 0.0
    fail: str = ""
    context: int = 64
    refuse_version: int = -1


class FakeEngine:
    """Samples ``max_tokens`` tokens whose ids are the version that sampled them, ``token_s`` apart."""

    Config = EngineConfig

    def __init__(self, config, context):
        self.config, self.context = config, context
        self.logprob_semantics = LogprobSemantics(temperature=True, truncation=False)
        self.context_length = config.context
        self.version = 0
        self.tokens = 0
        self.running = 0
        self.aborted = set()
        self.live = asyncio.Event()
        self.live.set()
        self.cut = 0

    async def start(self, model: Path):
        if self.config.fail:
            raise UserError(self.config.fail)
        time.sleep(self.config.block_s)
        await asyncio.sleep(self.config.start_s)

    async def generate(self, request):
        await self.live.wait()
        if request.pinned_version not in (None, self.version):
            raise WrongVersion(f"pinned to {request.pinned_version}, serving {self.version}")
        if len(request.prompt) + request.sampling.max_tokens > self.context_length:
            raise ValueError("over the context")
        if request.id == "poison":
            os._exit(3)
        if request.id == "lost":
            raise EngineLost("its backend is lost")
        if request.id == "hang":
            time.sleep(60)
        count = request.sampling.max_tokens
        cut = self.cut
        versions = []
        reason = "length"
        self.running += 1
        try:
            if self.config.token_s == 0:
                versions = [self.version] * count
            while len(versions) < count:
                await asyncio.sleep(self.config.token_s)
                if cut != self.cut or request.id in self.aborted:
                    reason = "abort"
                    break
                await self.live.wait()
                versions.append(self.version)
        finally:
            self.running -= 1
        self.tokens += len(versions)
        found = np.array(versions, np.int32)
        return GenerateResult(
            request.id, found + 3, -np.ones(len(found), np.float32), found, reason
        )

    async def score(self, tokens):
        return -np.arange(len(tokens), dtype=np.float32)

    async def pause(self, mode):
        self.live.clear()
        if mode == "abort":
            self.cut += 1
        while mode == "wait" and self.running:
            await asyncio.sleep(0.01)

    async def resume(self):
        self.live.set()

    async def abort(self, ids):
        self.aborted.update(ids)

    async def load_weights(self, source):
        await asyncio.sleep(self.config.load_s)
        if source.version == self.config.refuse_version:
            raise WeightsError(f"version {source.version} has a tensor of another shape")
        assert source.path.read_text() == str(source.version)
        self.version = source.version

    async def health(self):
        return {
            "running": self.running,
            "waiting": 0,
            "version": self.version,
            "tokens_generated": self.tokens,
            "prompt_tokens": 0,
            "decode_seconds": 0.5,
        }

    async def close(self):
        self.live.set()


class TransportConfig(ConfigModel):
    fetch_s: float = 0.0
    broken: int = -1


class FakeTransport:
    """A receiver whose source is a file that holds the version."""

    Config = TransportConfig

    def __init__(self, config, context):
        self.config, self.context = config, context

    def receiver(self):
        return self

    def fetch(self, announcement, deadline_s):
        time.sleep(self.config.fetch_s)
        if announcement.version == self.config.broken:
            raise WeightsError(f"version {announcement.version}: block 3 does not match its digest")
        self.context.directory.mkdir(parents=True, exist_ok=True)
        path = self.context.directory / f"v{announcement.version}"
        path.write_text(str(announcement.version))
        return WeightSource(
            announcement.policy,
            announcement.version,
            path,
            announcement.digest,
            announcement.size,
            0.1,
            # The first fetch is complete and measures its link; later ones are too short.
            link=None if announcement.version else Link(23.0, 0.3),
        )

    def release(self, source):
        source.path.unlink()

    def close(self):
        return


class SingleTurn:
    """Asks every policy once."""

    def __init__(self, config, context):
        pass

    async def run_episode(self, engines, prompt):
        sequences, completions = [], []
        for engine in engines.values():
            tokens = engine.render(prompt.data["prompt"])
            result = await engine.generate(tokens)
            sequences.append(engine.sequence(tokens, result))
            completions.append(engine.completion(result))
        return Trajectory(tuple(sequences), tuple(completions), metrics={"turns": 1.0})


class Length:
    """Rewards the number of sampled tokens."""

    def __init__(self, config, context):
        pass

    async def score(self, view):
        return float(len(view.completions[-1].tokens))


class Blocking:
    """Does what the prompt's ``do`` says: hangs, exits, raises, or scores with its own pid."""

    capabilities = frozenset({"blocking"})

    def __init__(self, config, context):
        sys.stdout.write("a reward may print\n")

    def score(self, view):
        do = view.data.get("do")
        if do == "hang":
            time.sleep(60)
        if do == "exit":
            os._exit(7)
        if do == "raise":
            raise KeyError("no answer here")
        return {"pid": os.getpid(), "nan": float("nan")}.get(do, 1.5)


class Unused:
    """A component that a run must name and that no RaaS builds."""

    def __init__(self, config, context):
        raise AssertionError("a RaaS built a component that is none of its business")


class Broken(Blocking):
    """Cannot be built."""

    def __init__(self, config, context):
        raise RuntimeError("no compiler found")


class NotAsync:
    """A workflow with a wrong signature: it is not async."""

    def __init__(self, config, context):
        pass

    def run_episode(self, engines, prompt):
        raise AssertionError("called")


def text_length(view):
    """A reward that is a plain function."""
    return float(len(view.text))


def reported_length(view):
    """A reward with a metric, which the prompt's data may replace."""
    length = float(len(view.text))
    return RewardReport({"solver": length}, view.data.get("metrics", {"length": length}))


async def judged_length(view, engines):
    """A reward that is an async function and asks for the engines."""
    return len(view.text) + len(engines)
