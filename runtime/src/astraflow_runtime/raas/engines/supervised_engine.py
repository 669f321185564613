"""Keeps one engine host running: starts it, and restarts it a few times when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import RunFailed
from astraflow_core.types import GenerateRequest, GenerateResult, Images
from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines.host_process import EngineHostProcess

log = logging.getLogger("astraflow.raas")
MAX_DEATHS = 3
"""Consecutive deaths of a host, without a finished request between, after which its RaaS gives up.
"""

_PAUSE_S = 0.5
"""Delay before the next start for each consecutive death but the first: a host that worked is
replaced at once.
"""

_LONGEST_PAUSE_S = 30.0


class SupervisedEngine:
    """The engine of ``policy``, across restarts of its host. ``changed`` is called when a host has
    started, is gone, and stops or resumes responding. ``replica`` is its number if the policy has
    several; ``needed()`` returns whether its RaaS must give up when hosts keep dying.
    """

    def __init__(
        self,
        policy: str,
        start: Callable[[int], Awaitable[EngineHostProcess]],
        replica: int | None = None,
        needed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.policy = policy
        self.label = f"policy {policy!r}" + ("" if replica is None else f" (replica {replica})")
        self.number = replica or 0
        self._needed = needed
        self.host: EngineHostProcess | None = None
        self.restarts = 0
        self.changed: Callable[[], None] = lambda: None
        self._start = start
        self._stopped_before_s = 0.0
        self._last_reason = "is starting"
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Keep a host running until closed or cancelled; :class:`RunFailed` when it keeps dying."""
        deaths = 0
        attempt = 0
        while True:
            attempt += 1
            finished, reason = await self._one_life(attempt)
            if self._closing.is_set():
                return
            deaths = 1 if finished else deaths + 1
            self._last_reason = f"{reason}; restarting it"
            log.error("the engine host of %s %s (%d in a row)", self.label, reason, deaths)
            if deaths >= MAX_DEATHS and self._needed():
                raise RunFailed(
                    f"the engine host of {self.label} died {deaths} times in a row without finishing "
                    f"a request; last it {reason}"
                )
            self.restarts += 1
            await asyncio.sleep(min(_PAUSE_S * (deaths - 1), _LONGEST_PAUSE_S))

    async def _one_life(self, attempt: int) -> tuple[int, str]:
        try:
            host = await self._start(attempt)
        except HostGone as error:
            return 0, str(error)
        self.host = host
        host.silence_changed = lambda: self.changed()
        self.changed()
        log.info(
            "the engine of %s started in %.1f s (pid %d)",
            self.label,
            host.start_s,
            host.pid,
        )
        try:
            reason = await host.wait_end()
        finally:
            self._stopped_before_s += host.stopped_s()
            self.host = None
            self.changed()
        return host.client.finished, reason

    @property
    def answers(self) -> bool:
        """Whether a host runs and responds."""
        return self.host is not None and self.host.silence is None

    @property
    def stopped_s(self) -> float:
        """Seconds for which its host was stopped so far."""
        return self._stopped_before_s + (self.host.stopped_s() if self.host is not None else 0.0)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """``Engine.generate`` on the current host; :class:`HostGone` if there is none."""
        return await self.running().client.generate(request)

    async def score(
        self, tokens: npt.NDArray[np.int32], deadline_s: float, images: Images = ()
    ) -> npt.NDArray[np.float32]:
        """``Engine.score`` on the current host; :class:`HostGone` if there is none."""
        return await self.running().client.score(tokens, deadline_s, images)

    def running(self) -> EngineHostProcess:
        """The host, if there is one; else :class:`HostGone`."""
        if self.host is None:
            raise HostGone(f"the engine host of {self.label} {self._last_reason}")
        return self.host

    async def close(self) -> None:
        """Close the host, if one runs; :meth:`run` then returns."""
        self._closing.set()
        if self.host is not None:
            await self.host.close()
