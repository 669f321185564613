"""Gives engines sequences of earlier groups of the prompts that are rolled out, to take drafts from.

The rollout store of the run has them, so that a RaaS that was restarted, or never had a prompt, drafts from what was sampled
before. Nothing waits for them: without them tokens are the same, and need more forward passes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError
from astraflow_engine_host.drafts import KEY
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_wire.http.drafts import PastSequence
from astraflow_wire.messages import Task

log = logging.getLogger("astraflow.raas")
UNDER_WAY = 8
"""The most tasks at once for which sequences are on their way; others begin without."""
NOT_USEFUL = 4
"""One of so many tasks is asked for, while an engine says that drafts do not pay."""

Ask = Callable[[str, Mapping[str, int], float], Awaitable[list[PastSequence]]]
"""Task, most bytes of each policy, deadline in seconds → sequences."""


def draft_bytes(config: RunConfig) -> dict[str, int]:
    """Policy → the most bytes of sequences for a task, of those whose engine takes any."""
    told = {
        name: int(policy.engine.options.get(KEY, 0)) for name, policy in config.policies.items()
    }
    return {name: kb * 1000 for name, kb in told.items() if kb}


class StoredDrafts:
    """``most_bytes``: policy → bytes for a task. ``ask``: of the dataflow. A failure costs drafts only: it is logged."""

    def __init__(
        self,
        ask: Ask,
        replicas: Mapping[str, Replicas],
        most_bytes: Mapping[str, int],
        deadline_s: float,
    ) -> None:
        self._ask, self._replicas, self._deadline_s = ask, replicas, deadline_s
        self._most_bytes = dict(most_bytes)
        self._left_out = dict.fromkeys(most_bytes, 0)
        self._under_way: set[asyncio.Task[None]] = set()

    @classmethod
    def of_run(cls, config: RunConfig, ask: Ask, handles: Mapping[str, PolicyHandle]) -> Self:
        """Stored drafts for the engines of the config that take them."""
        replicas = {name: handle.replicas for name, handle in handles.items()}
        return cls(ask, replicas, draft_bytes(config), config.run.deadline_s)

    def fetch(self, task: Task) -> None:
        """A training task begins: its engines get what the dataflow has of its prompt, in the background."""
        if task.eval_set or len(self._under_way) >= UNDER_WAY:
            return
        policies = [name for name in self._most_bytes if not self._leave_out(name)]
        if not policies:
            return
        fetching = asyncio.create_task(self._fetch(task.id, policies))
        self._under_way.add(fetching)
        fetching.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """End what is under way."""
        under_way = list(self._under_way)
        for fetching in under_way:
            fetching.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _leave_out(self, policy: str) -> bool:
        left = self._left_out[policy]
        self._left_out[policy] = max(0, left - 1)
        return left > 0

    async def _fetch(self, task: str, policies: Sequence[str]) -> None:
        most = {name: self._most_bytes[name] for name in policies}
        try:
            found = await self._ask(task, most, self._deadline_s)
            for policy in policies:
                if own := [each for each in found if each.policy == policy]:
                    await self._give(policy, own)
        except AstraFlowError as error:
            log.info("no stored drafts for task %s: %s", task, error)

    async def _give(self, policy: str, sequences: Sequence[PastSequence]) -> None:
        useful: list[bool] = []

        async def learn(client: HostClient) -> None:
            useful.append(await client.learn_drafts(sequences, self._deadline_s))

        try:
            await self._replicas[policy].to_all(learn)
        except ValueError as error:
            self._most_bytes.pop(policy, None)
            log.warning("policy %r gets no more stored drafts: %s", policy, error)
            return
        self._left_out[policy] = 0 if any(useful) else NOT_USEFUL - 1
