"""Submissions to a rollout service of the public protocol, and their results, which it is polled for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from astraflow_contrib_compat.config import WorkflowTable
from astraflow_contrib_compat.pickles.decoder import PickleRefused
from astraflow_contrib_compat.raas.client import ForeignClient, ForeignFailed, ForeignUnreachable
from astraflow_wire.messages import SamplingMessage

log = logging.getLogger("astraflow.compat")
Lane = Literal["", "eval_"]
"""Prefix of the endpoints: training and evaluation have tasks and counters of their own."""
MOST_ITEMS = 256
MOST_EARLY = 256
"""Results kept that came before the reply to their submission."""


class UnsupportedSampling(ValueError):
    """A task needs a sampling option that the public protocol does not have."""


class Submissions:
    """What is submitted to one RaaS and not yet back. ``doubt`` is called when it does not answer."""

    def __init__(
        self,
        client: ForeignClient,
        workflow: WorkflowTable,
        poll_s: float,
        doubt: Callable[[], None],
    ) -> None:
        self._client, self._workflow, self._poll_s, self._doubt = client, workflow, poll_s, doubt
        self._registered: dict[str, str] = {}
        self._registering = asyncio.Lock()
        self._waiting: dict[Lane, dict[int, asyncio.Future[Any]]] = {"": {}, "eval_": {}}
        self._early: dict[tuple[Lane, int], Any] = {}
        self._submitting = 0
        self._some = asyncio.Event()

    async def play(
        self, lane: Lane, data: dict[str, Any], sampling: SamplingMessage, episodes: int
    ) -> Any:
        """Submit ``data`` and wait for its result, of that many episodes. :class:`ForeignFailed` if there is none."""
        workflow = await self._workflow_for(sampling, episodes)
        self._submitting += 1
        self._some.set()
        try:
            told = await self._client.post(
                f"/{lane}submit", {"data": data, "workflow_id": workflow}
            )
        finally:
            self._submitting -= 1
        number = told.get("task_id") if isinstance(told, dict) else None
        if not isinstance(number, int) or isinstance(number, bool):
            raise ForeignFailed(f"POST {self._client.url}/{lane}submit: its answer has no task_id")
        if (lane, number) in self._early:
            return self._early.pop((lane, number))
        if number in self._waiting[lane]:
            raise ForeignFailed(f"POST {self._client.url}/{lane}submit: task_id {number} is in use")
        future = self._waiting[lane][number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self._waiting[lane][number]

    async def evaluation_began(self) -> None:
        """Announce to the RaaS that an evaluation begins, when nothing else runs there."""
        answer = await self._client.post("/reset_training_engine", {"timeout": 10.0})
        if not isinstance(answer, dict) or answer.get("ready_for_eval") is not True:
            raise ForeignFailed(
                f"POST {self._client.url}/reset_training_engine: not ready for an evaluation"
            )
        for key in [key for key in self._early if key[0] == "eval_"]:
            del self._early[key]
        await self._client.post("/eval_start", {})

    async def evaluation_ended(self) -> None:
        """Announce to the RaaS that the evaluation is over. A failure shows at the next call."""
        try:
            await self._client.post("/eval_end", {})
        except (ForeignFailed, PickleRefused) as error:
            log.warning("an evaluation was not ended: %s", error)

    async def run(self) -> None:
        """Pull results while some are awaited."""
        while True:
            await self._some.wait()
            if not (self._submitting or any(self._waiting.values())):
                self._some.clear()
                continue
            for lane, waiting in self._waiting.items():
                if waiting:
                    await self._pull(lane)
            await asyncio.sleep(self._poll_s)

    async def _pull(self, lane: Lane) -> None:
        asked = {"max_items": MOST_ITEMS, "timeout": self._poll_s}
        try:
            told = await self._client.post(f"/{lane}pull", asked)
            items = told.get("items") if lane and isinstance(told, dict) else told
            if not isinstance(items, list) or not all(map(_is_item, items)):
                raise ForeignFailed(
                    f"POST {self._client.url}/{lane}pull: expected items with task_id and result"
                )
        except ForeignUnreachable:
            self._doubt()
            return
        except (ForeignFailed, PickleRefused) as error:
            # Whatever the answer had is lost: its tasks are tried again, rather than waited for.
            for future in self._waiting[lane].values():
                if not future.done():
                    future.set_exception(ForeignFailed(str(error)))
            return
        for item in items:
            self._deliver(lane, item["task_id"], item["result"])

    def _deliver(self, lane: Lane, number: int, result: Any) -> None:
        future = self._waiting[lane].get(number)
        if future is None:
            self._early[lane, number] = result
            while len(self._early) > MOST_EARLY:
                del self._early[next(iter(self._early))]
        elif not future.done():
            future.set_result(result)

    async def _workflow_for(self, sampling: SamplingMessage, episodes: int) -> str:
        """The id of the workflow with this sampling, registered once."""
        table = self._workflow
        overrides = {**gconfig(sampling, episodes, table.samples_key), **table.gconfig_overrides}
        key = repr(sorted(overrides.items()))
        async with self._registering:
            if key not in self._registered:
                name = f"auto-{len(self._registered)}"
                asked: dict[str, Any] = {
                    "workflow_id": name,
                    "workflow_cls": table.workflow_cls,
                    "gconfig_overrides": overrides,
                    "workflow_kwargs": table.workflow_kwargs,
                }
                if table.reward_fn:
                    asked["reward_fn"] = table.reward_fn
                await self._client.post("/register_workflow", asked)
                self._registered[key] = name
        return self._registered[key]


def gconfig(sampling: SamplingMessage, episodes: int, samples_key: str) -> dict[str, Any]:
    """``gconfig_overrides`` for a task. :class:`UnsupportedSampling` for what they cannot say."""
    if sampling.min_p:
        raise UnsupportedSampling("the public protocol has no min_p: remove it from [sampling]")
    found: dict[str, Any] = {
        samples_key: episodes,
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.temperature == 0:
        found["greedy"] = True
    if sampling.top_p != 1:
        found["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        found["top_k"] = sampling.top_k
    if sampling.stop:
        found["stop"] = list(sampling.stop)
    return found


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("task_id"), int) and "result" in item
