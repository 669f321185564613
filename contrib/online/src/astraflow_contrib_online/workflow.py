"""The episode: a leased slot that waits until a service opens it, and then until the service rewards it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from astraflow_contrib_online.access import announce, token_of
from astraflow_contrib_online.config import OnlineConfig
from astraflow_contrib_online.routes import PATH, add_routes
from astraflow_contrib_online.slots import REASONS, Outcome, Slot, Slots
from astraflow_core.errors import WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_gateway.conversation import Episodes
from astraflow_gateway.episode import Budget
from astraflow_gateway.rewards import rewards_of
from astraflow_gateway.server import Gateway

log = logging.getLogger("astraflow.online")


class OnlineWorkflow:
    """A service that is used by people opens the episodes, as in Claw-R1. Each fills a slot that the run has leased, so
    that the bound of staleness and back-pressure hold as for any other task; each token has the version that sampled
    it. An episode without a reward is rejected."""

    def __init__(self, config: OnlineConfig, context: ComponentContext) -> None:
        config.listening.tls()  # refused now, and not by each episode
        self._config, self._run = config, context.run.directory
        self._raas = context.directory.parent.name
        self._episodes = Episodes(context.run, Budget(config.max_calls, config.max_tokens))
        self._engines: Mapping[str, PolicyEngine] = {}
        self._serving: asyncio.Task[Slots] | None = None
        self._untrained: set[asyncio.Task[None]] = set()

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode; ``None`` if it was not opened or not rewarded."""
        slots = await self._started()
        self._engines = engines
        slot = Slot(self._episodes.begin(engines))
        slots.offer(slot)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.wait_s):
                    await slot.opened.wait()
            slots.withdraw(slot)
            if slot.opened.is_set():
                await self._until_over(slots, slot)
        finally:
            await slots.close(slot)
        if slot.episode.failure is not None:
            raise slot.episode.failure
        if slot.outcome == "rewarded":
            return self._trajectory(slot, prompt)
        if slot.outcome is not None:
            log.info("%s is not trained: %s", slot.id, REASONS[slot.outcome])
        return None

    def _trajectory(self, slot: Slot, prompt: Prompt) -> Trajectory:
        episode = slot.episode
        try:
            rewards = rewards_of(slot.report and slot.report.reward, slot.policies, "the reward")
        except WorkflowError as error:
            raise WorkflowError(f"prompt {prompt.id!r}, {slot.id}: {error}") from error
        return Trajectory(
            tuple(episode.sequences()), tuple(episode.completions), rewards, episode.metrics()
        )

    async def _until_over(self, slots: Slots, slot: Slot) -> None:
        """Return when an opened episode is over."""
        waits = [
            asyncio.create_task(wait)
            for wait in (slot.over.wait(), slot.episode.failed.wait(), self._idle(slot))
        ]
        _, failed, idle = waits
        try:
            await asyncio.wait(
                waits, timeout=self._config.deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        ended: Outcome = "late" if idle.cancelled() else "idle"
        if not failed.cancelled():
            ended = "failed"
        elif slot.report is not None:  # one that came without `done` stands
            ended = "rewarded"
        slots.finish(slot, ended)

    async def _idle(self, slot: Slot) -> None:
        """Return when nothing came for ``idle_s``, or for twice that."""
        seen = None
        while seen != (now := (slot.episode.calls, slot.signs)) or slot.episode.busy:
            seen = now
            await asyncio.sleep(self._config.idle_s)

    async def _started(self) -> Slots:
        """The slots of the running event loop."""
        if self._serving is None or self._serving.get_loop() is not asyncio.get_running_loop():
            self._serving = asyncio.create_task(self._start())
        return await asyncio.shield(self._serving)

    async def _start(self) -> Slots:
        token = token_of(self._run, self._config.token_env)
        gateway = Gateway(self._config.listening)
        slots = Slots(gateway)
        add_routes(gateway.app, slots, token, lambda: self._open_untrained(slots))
        await gateway.start()
        announce(self._run, self._raas, gateway.url, self._config.token_env)
        log.info("episodes are opened with POST %s%s", gateway.url, PATH)
        return slots

    def _open_untrained(self, slots: Slots) -> Slot | None:
        """An episode over the engines of an earlier task."""
        if not self._engines or slots.untrained >= self._config.max_untrained:
            return None
        slot = Slot(self._episodes.begin(self._engines), trained=False)
        slots.open(slot)
        playing = asyncio.create_task(self._played_untrained(slots, slot))
        self._untrained.add(playing)
        playing.add_done_callback(self._untrained.discard)
        return slot

    async def _played_untrained(self, slots: Slots, slot: Slot) -> None:
        try:
            await self._until_over(slots, slot)
        finally:
            await slots.close(slot)
