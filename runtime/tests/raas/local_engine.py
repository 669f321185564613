"""An engine inside the test's own process, where a RaaS expects a supervised host."""

from __future__ import annotations

from types import SimpleNamespace

from fake_parts import EngineConfig, FakeEngine

from astraflow_engine_host.protocol import HostGone
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.replicas import Replicas


class LocalClient:
    """A ``HostClient`` without a host."""

    host = "the engine host of policy 'solver' in raas-0"

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.calls: list[str] = []
        self.pending = 0
        self.lost: str | None = None

    async def generate(self, request):
        self.pending += 1
        try:
            return await self.engine.generate(request)
        finally:
            self.pending -= 1

    async def pause(self, mode, deadline_s):
        self.calls.append(f"pause {mode}")
        await self.engine.pause(mode)

    async def load_weights(self, source, deadline_s):
        self.calls.append(f"load {source.version}")
        await self.engine.load_weights(source)

    async def sleep(self, level, deadline_s):
        self.calls.append(f"sleep {level}")

    async def wake(self, deadline_s):
        self.calls.append("wake")

    async def resume(self, deadline_s):
        self.calls.append("resume")
        await self.engine.resume()


class LocalEngine:
    """A ``SupervisedEngine`` whose host is replaced by :meth:`start` and lost by :meth:`die`."""

    restarts = 0
    stopped_s = 0.0

    def __init__(self, policy: str = "solver", number: int = 0, **config) -> None:
        self.policy, self.number = policy, number
        self.label = f"policy {policy!r}"
        self.config = EngineConfig(**config)
        self.changed = lambda: None
        self.start()

    def start(self) -> None:
        client = LocalClient(FakeEngine(self.config, None))
        self.host = SimpleNamespace(
            client=client,
            context_length=self.config.context,
            cpu_s=0.0,
            pid=0,
            silence=None,
            kill=lambda reason: self.die(),
        )
        self.changed()

    def die(self) -> None:
        self.host = None
        self.changed()

    @property
    def answers(self):
        return self.host is not None and self.host.silence is None

    def running(self):
        if self.host is None:
            raise HostGone("the engine host is lost")
        return self.host

    async def generate(self, request):
        return await self.running().client.generate(request)


def replicas_of(*engines: LocalEngine, serving=None, **settings) -> Replicas:
    """Engines as the replicas of their policy; they serve version 0 unless ``serving()`` says otherwise."""
    serving = serving or (lambda: 0)
    members = [Replica(number, engine, serving) for number, engine in enumerate(engines)]
    return Replicas(members, **settings)
