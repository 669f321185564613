"""A replica: one of the engines that serve a policy, with its load and its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astraflow_runtime.raas.engines.host_process import EngineHostProcess
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine


class Replica:
    """``serving()`` is the version that its host serves, ``None`` while it has none; ``gauges`` the
    last gauges of the engine, ``routed`` the number of requests routed to it so far.
    """

    def __init__(
        self, number: int, engine: SupervisedEngine, serving: Callable[[], int | None]
    ) -> None:
        self.number, self.engine, self.serving = number, engine, serving
        self.gauges: dict[str, float] = {}
        self._sleeper: EngineHostProcess | None = None
        self.routed = 0

    @property
    def asleep(self) -> bool:
        """Whether its host is asleep; a new host starts awake."""
        return self._sleeper is not None and self._sleeper is self.engine.host

    async def fall_asleep(self, level: int, deadline_s: float) -> None:
        """Release the devices; running requests end with the tokens so far and are continued after
        :meth:`wake`.
        """
        host = self._sleeper = self.engine.running()
        await host.client.pause("abort", deadline_s)
        await host.client.sleep(level, deadline_s)

    async def wake(self, deadline_s: float) -> None:
        """Undo :meth:`fall_asleep`."""
        host = self.engine.running()
        await host.client.wake(deadline_s)
        await host.client.resume(deadline_s)
        self._sleeper = None

    @property
    def pending(self) -> int:
        """The number of requests in flight."""
        return self.engine.host.client.pending if self.engine.host is not None else 0

    @property
    def load(self) -> float:
        """The load with one more request, relative to the number that the engine runs at once, if
        known.
        """
        return (self.pending + 1) / max(1.0, self.gauges.get("max_running", 1.0))

    def can_take(self, pinned: int | None) -> bool:
        """Whether it accepts a request: of any version, or of exactly the ``pinned`` one."""
        host, version = self.engine.host, self.serving()
        if host is None or host.client.lost is not None or version is None or self.asleep:
            return False
        return pinned in (None, version)

    def state(self) -> str:
        """``starting``, ``loading`` (a host without a version), ``silent``, ``asleep`` or ``serving``."""
        host = self.engine.host
        if host is None or host.client.lost is not None:
            return "starting"
        if host.silence is not None:
            return "silent"
        if self.asleep:
            return "asleep"
        return "loading" if self.serving() is None else "serving"

    def report(self) -> dict[str, Any]:
        """Its state, JSON-like."""
        host, version = self.engine.host, self.serving()
        return {
            "replica": self.number,
            "state": self.state(),
            "version": version,
            "pid": host.pid if host is not None else None,
            "pending": self.pending,
            "routed": self.routed,
            "restarts": self.engine.restarts,
        }
