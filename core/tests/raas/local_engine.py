"""An engine inside the test's own process, where a RaaS expects a supervised host."""

from __future__ import annotations

from types import SimpleNamespace

from fake_parts import EngineConfig, FakeEngine

from astraflow_core.raas.host_protocol import HostGone


class LocalClient:
    """A ``HostClient`` without a host."""

    host = "the engine host of policy 'solver' in raas-0"

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.calls: list[str] = []

    async def generate(self, request):
        return await self.engine.generate(request)

    async def pause(self, mode, deadline_s):
        self.calls.append(f"pause {mode}")
        await self.engine.pause(mode)

    async def load_weights(self, source, deadline_s):
        self.calls.append(f"load {source.version}")
        await self.engine.load_weights(source)

    async def resume(self, deadline_s):
        self.calls.append("resume")
        await self.engine.resume()


class LocalEngine:
    """A ``SupervisedEngine`` whose host is replaced by :meth:`start` and lost by :meth:`die`."""

    restarts = 0
    stopped_s = 0.0

    def __init__(self, policy: str = "solver", **config) -> None:
        self.policy = policy
        self.config = EngineConfig(**config)
        self.changed = lambda: None
        self.start()

    def start(self) -> None:
        client = LocalClient(FakeEngine(self.config, None))
        self.host = SimpleNamespace(
            client=client,
            context_length=self.config.context,
            cpu_s=0.0,
            kill=lambda reason: self.die(),
        )
        self.changed()

    def die(self) -> None:
        self.host = None
        self.changed()

    def running(self):
        if self.host is None:
            raise HostGone("the engine host is gone")
        return self.host

    async def generate(self, request):
        return await self.running().client.generate(request)
