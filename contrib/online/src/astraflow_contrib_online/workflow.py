"""The episode: a leased place that waits until a service opens it, and then until the service rewards it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from astraflow_contrib_online.access import announce, token_of
from astraflow_contrib_online.config import OnlineConfig
from astraflow_contrib_online.places import REASONS, Outcome, Place, Places
from astraflow_contrib_online.routes import PATH, add_routes
from astraflow_core.errors import WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_gateway.conversation import Episodes
from astraflow_gateway.episode import Budget
from astraflow_gateway.rewards import rewards_of
from astraflow_gateway.server import Gateway

log = logging.getLogger("astraflow.online")


class OnlineWorkflow:
    """A service that is used by people opens the episodes, as in Claw-R1. Each fills a place that the run has leased, so
    that the bound of staleness and back-pressure hold as for any other task; each token has the version that sampled
    it. An episode without a reward is rejected."""

    def __init__(self, config: OnlineConfig, context: ComponentContext) -> None:
        config.listening.tls()  # refused now, and not by each episode
        self._config, self._run = config, context.run.directory
        self._raas = context.directory.parent.name
        self._episodes = Episodes(context.run, Budget(config.max_calls, config.max_tokens))
        self._engines: Mapping[str, PolicyEngine] = {}
        self._serving: asyncio.Task[Places] | None = None
        self._untrained: set[asyncio.Task[None]] = set()

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode; ``None`` if it was not opened or not rewarded."""
        places = await self._started()
        self._engines = engines
        place = Place(self._episodes.begin(engines))
        places.offer(place)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.wait_s):
                    await place.opened.wait()
            places.withdraw(place)
            if place.opened.is_set():
                await self._until_over(places, place)
        finally:
            await places.close(place)
        if place.episode.failure is not None:
            raise place.episode.failure
        if place.outcome == "rewarded":
            return self._trajectory(place, prompt)
        if place.outcome is not None:
            log.info("%s is not trained: %s", place.id, REASONS[place.outcome])
        return None

    def _trajectory(self, place: Place, prompt: Prompt) -> Trajectory:
        episode = place.episode
        try:
            rewards = rewards_of(place.reward, place.policies, "the reward")
        except WorkflowError as error:
            raise WorkflowError(f"prompt {prompt.id!r}, {place.id}: {error}") from error
        return Trajectory(
            tuple(episode.sequences()), tuple(episode.completions), rewards, episode.metrics()
        )

    async def _until_over(self, places: Places, place: Place) -> None:
        """Return when an opened episode is over."""
        waits = [
            asyncio.create_task(wait)
            for wait in (place.over.wait(), place.episode.failed.wait(), self._idle(place))
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
        elif place.reward is not None:  # one that came without `done` stands
            ended = "rewarded"
        places.finish(place, ended)

    async def _idle(self, place: Place) -> None:
        """Return when nothing came for ``idle_s``, or for twice that."""
        seen = None
        while seen != (now := (place.episode.calls, place.signs)) or place.episode.busy:
            seen = now
            await asyncio.sleep(self._config.idle_s)

    async def _started(self) -> Places:
        """The places of the running event loop."""
        if self._serving is None or self._serving.get_loop() is not asyncio.get_running_loop():
            self._serving = asyncio.create_task(self._start())
        return await asyncio.shield(self._serving)

    async def _start(self) -> Places:
        token = token_of(self._run, self._config.token_env)
        gateway = Gateway(self._config.listening)
        places = Places(gateway)
        add_routes(gateway.app, places, token, lambda: self._open_untrained(places))
        await gateway.start()
        announce(self._run, self._raas, gateway.url, self._config.token_env)
        log.info("episodes are opened with POST %s%s", gateway.url, PATH)
        return places

    def _open_untrained(self, places: Places) -> Place | None:
        """An episode over the engines of an earlier task."""
        if not self._engines or places.untrained >= self._config.max_untrained:
            return None
        place = Place(self._episodes.begin(self._engines), trained=False)
        places.open(place)
        playing = asyncio.create_task(self._played_untrained(places, place))
        self._untrained.add(playing)
        playing.add_done_callback(self._untrained.discard)
        return place

    async def _played_untrained(self, places: Places, place: Place) -> None:
        try:
            await self._until_over(places, place)
        finally:
            await places.close(place)
