"""Rollouts without services: an engine, prompts and a reward in this process, the same for the same seed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.engine import Engine
from astraflow_core.types import (
    Completion,
    GenerateRequest,
    GenerateResult,
    Group,
    Prompt,
    Sampling,
    Trajectory,
    TrajectoryView,
    WeightSource,
)
from astraflow_core.types import Sequence as TokenSequence
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_wire.groups import encode_group

POLICY = "solver"


class Rollouts:
    """Samples whole groups of single-turn episodes with the weights that were loaded last.

    An engine samples the rows of one call together, so it is frozen until all requests of a call are there:
    what it does then depends on nothing but its seed and the calls before.
    """

    def __init__(
        self,
        engine: Engine,
        reward: object,
        model: Path,
        sampling: Sampling,
        group_size: int,
    ) -> None:
        self._engine, self._reward = engine, reward
        self._tokenizer = FolderTokenizer(model)
        self._sampling, self._group_size = sampling, group_size
        self._numbers = itertools.count()
        self.sequences = 0

    async def load(self, file: Path, version: int) -> None:
        """Serve these weights from now on."""
        await self._engine.pause("keep")
        await self._engine.load_weights(WeightSource(POLICY, version, file, "", 0, 0.0))
        await self._engine.resume()

    async def groups(self, prompts: Sequence[Prompt]) -> list[bytes]:
        """A group per prompt, each as the body of a push."""
        repeated = [prompt for prompt in prompts for _ in range(self._group_size)]
        episodes = await self._episodes(repeated, self._sampling)
        self.sequences += len(episodes)
        bodies = []
        for index, prompt in enumerate(prompts):
            own = tuple(episodes[index * self._group_size : (index + 1) * self._group_size])
            bodies.append(encode_group(Group(f"task-{prompt.id}", prompt.id, own), "loop"))
        return bodies

    async def accuracy(self, prompts: Sequence[Prompt], temperature: float) -> float:
        """Share of the prompts with a reward of 1, one completion each."""
        sampling = Sampling(self._sampling.max_tokens, temperature=temperature)
        episodes = await self._episodes(prompts, sampling)
        return float(np.mean([episode.rewards[POLICY] == 1.0 for episode in episodes]))

    async def _episodes(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Trajectory]:
        encoded = [self._tokenizer.encode(prompt.data["prompt"]) for prompt in prompts]
        await self._engine.pause("keep")
        requests = [
            asyncio.ensure_future(
                self._engine.generate(GenerateRequest(str(next(self._numbers)), tokens, sampling))
            )
            for tokens in encoded
        ]
        await asyncio.sleep(0)  # each of them reaches the engine
        await self._engine.resume()
        results = await asyncio.gather(*requests)
        return [
            await self._trajectory(*episode)
            for episode in zip(prompts, encoded, results, strict=True)
        ]

    async def _trajectory(
        self, prompt: Prompt, tokens: npt.NDArray[np.int32], result: GenerateResult
    ) -> Trajectory:
        text = self._tokenizer.decode(result.tokens)
        completion = Completion(POLICY, text, result.tokens, result.finish_reason)
        reward = await self._reward.score(TrajectoryView(prompt, (completion,)))  # type: ignore[attr-defined]
        zeros = np.zeros(len(tokens), np.float32)
        sequence = TokenSequence(
            POLICY,
            np.concatenate([tokens, result.tokens]),
            np.concatenate([zeros.astype(np.bool_), np.ones(len(result.tokens), np.bool_)]),
            np.concatenate([zeros, result.logprobs]),
            np.concatenate([np.full(len(tokens), -1, np.int32), result.versions]),
        )
        return Trajectory((sequence,), (completion,), {POLICY: float(reward)})
