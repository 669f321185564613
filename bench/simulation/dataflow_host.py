"""The dataflow of a simulated run: its real app, state and journal, killed and restarted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, MutableMapping
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.config.models import DataPolicyTable, RunConfig
from astraflow_core.errors import PluginError
from astraflow_core.protocols.data_policy import Scale
from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.clock import RunClock
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.image.keeper import ImageKeeper
from astraflow_runtime.dataflow.image.restart import continued, written_by
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from bench.simulation.ledger import Ledger, Violation
from bench.simulation.network import Answer

LOOK_S = 1.0
LOOKS_PER_IMAGE = 5


class _Prompts:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(str(index), {})


def _no_policy(place: str, table: DataPolicyTable, number: int) -> Any:
    raise PluginError(f"there is no data policy {table.use!r} here")


def scaling_rule(config: RunConfig) -> Scale:
    """What ``[balance]`` names."""
    context = component_context(config, Path(), "dataflow", "", "balance", "")
    rule: Scale = Catalog.discover().build(Kind.DATA_POLICY, config.balance, context)
    return rule


class DataflowHost:
    """Runs the dataflow. ``failed`` is called with each violation of an invariant."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        rule: Scale,
        ledger: Ledger,
        rng: random.Random,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._config, self._folder, self._rule = config, folder, rule
        self._ledger, self._rng, self._failed = ledger, rng, failed
        self.flow: Dataflow | None = None
        self._service: DataflowService | None = None
        self._journal: Journal | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.from_images = 0
        """Starts from an image of the state."""
        self.second_leases = (0, 0)
        """Those made, and those that were first, as the newest dataflow counts them."""

    def start(self, *, resumed: bool = False) -> None:
        """Start, from what the one before has left; ``resumed``: with the whole run."""
        wakeups, clock = Wakeups(), RunClock()

        def make() -> Dataflow:
            state = FlowState(
                self._config,
                cursor=PromptCursor(_Prompts(), 0, False),
                admission=PolicyPipeline([]),
                chains={policy: PolicyPipeline([]) for policy in self._config.policies},
                eval_sets={},
                rule=self._rule,
                clock=clock,
                signals=wakeups,
            )
            return Dataflow(state, _no_policy)

        self._journal, by = Journal(self._folder, clock), written_by(self._config)
        flow, covered, read = continued(make, self._journal, clock.set_time, by)
        clock.resume()
        if covered + read:
            flow.state.restore(self._journal, resumed=resumed)
        else:
            flow.state.records.begin(self._journal)
        self._images = ImageKeeper(flow, self._journal, by, covered)
        self.from_images += covered > 0
        self.flow, self._service = flow, DataflowService(flow, wakeups, "")
        self._ledger.lost(flow)
        self._keep(self._service.sweep())
        self._keep(self._look())

    def kill(self) -> None:
        """Kill the dataflow: what it wrote stays, but the end of the last write may be torn."""
        for task in list(self._tasks):
            task.cancel()
        self._tasks.clear()
        assert self._journal is not None
        for file in (self._journal._bodies, self._journal._entries):
            path = file.path
            file.close()
            if self._rng.random() < 0.3:
                with path.open("ab") as torn:
                    torn.write(self._rng.randbytes(self._rng.randrange(1, 12)))
        self.flow = self._service = self._journal = None

    def handle(
        self, method: str, path: str, body: bytes | None
    ) -> Coroutine[Any, Any, Answer] | None:
        """See :class:`bench.simulation.network.Host`."""
        return self._answer(method, path, body or b"") if self._service is not None else None

    async def _answer(self, method: str, path: str, body: bytes) -> Answer:
        task = self._keep(self._ask(method, path, body))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectionResetError("the dataflow was killed") from None
            raise

    async def _ask(self, method: str, path: str, body: bytes) -> Answer:
        assert self._service is not None and self.flow is not None
        flow = self.flow
        status, parts = 0, []
        given = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # a caller that gives up keeps its connection open
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(bytes(message.get("body", b"")))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "headers": [], "client": ("sim", 1), "server": ("sim", 2),
        }  # fmt: skip
        await self._service.app(scope, receive, send)
        self._checked(flow)
        return status, b"".join(parts)

    def _checked(self, flow: Dataflow) -> None:
        self.second_leases = (flow.state.train.leased_again, flow.state.train.second_won)
        try:
            self._ledger.event(flow, asyncio.get_running_loop().time())
        except Violation as violation:
            self._failed(violation)

    async def _look(self) -> None:
        """Write images and check the invariants periodically."""
        assert self.flow is not None
        flow, looks = self.flow, 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            if looks % LOOKS_PER_IMAGE == 0 and not flow.state.progress.ending:
                self._images.write_now()
            self._checked(flow)
            try:
                self._ledger.waits(flow)
            except Violation as violation:
                self._failed(violation)

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
