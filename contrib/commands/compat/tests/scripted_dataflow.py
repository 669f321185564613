"""A dataflow for tests: it leases the given tasks, and records the calls that it receives."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response

from astraflow_core.errors import Refused
from astraflow_wire import messages
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.http.server import create_app, read_message, reply


class ScriptedDataflow:
    """``tasks`` are leased when a RaaS has free slots. Recorded are the pushed ``groups``, the ``failed`` tasks, the
    RaaS that ``left``, and the ``names`` of those that got a task. ``only``: the one RaaS that gets tasks."""

    def __init__(self) -> None:
        self.tasks: list[messages.Task] = []
        self.notices: dict[str, Any] = {}
        self.groups: list[ReceivedGroup] = []
        self.failed: dict[str, messages.FailTask] = {}
        self.left: list[messages.LeaveRaas] = []
        self.serving: dict[str, int] = {}
        self.capacity = 0
        self.renewed: list[str] = []
        self.names: set[str] = set()
        self.only = ""
        self.refuses = ""
        self.changed = asyncio.Condition()
        self.app = self._app()

    def _app(self) -> FastAPI:
        app = create_app("scripted dataflow", "run", 1 << 24)
        for path in (
            "raas/register",
            "raas/leave",
            "tasks/lease",
            "tasks/renew",
            "tasks/fail",
            "groups",
        ):
            name = "do_" + path.replace("/", "_")
            app.add_api_route(f"/v1/{path}", self._noted(getattr(self, name)), methods=["POST"])
        return app

    def _noted(self, handler: Any) -> Any:
        async def call(request: Request) -> Response:
            answer = await handler(request)
            async with self.changed:
                self.changed.notify_all()
            return reply(answer)

        return call

    async def until(self, condition: Any, deadline_s: float = 30) -> None:
        """Wait until a condition on the recorded calls holds."""
        async with asyncio.timeout(deadline_s), self.changed:
            await self.changed.wait_for(condition)

    def _notices(self) -> messages.Notices:
        return messages.Notices(**self.notices)

    async def do_raas_register(self, request: Request) -> messages.Message:
        asked = await read_message(request, messages.RegisterRaas)
        self.capacity = asked.capacity
        return messages.RaasRegistered(
            run="run", renew_s=0.5, notices=self._notices(), incarnation=1
        )

    async def do_tasks_lease(self, request: Request) -> messages.Message:
        asked = await read_message(request, messages.LeaseTasks)
        self.serving, free = asked.serving, asked.free
        given = []
        free = free if self.only in ("", asked.raas) else 0
        while self.tasks and self.tasks[0].group_size <= free:
            free -= self.tasks[0].group_size
            given.append(self.tasks.pop(0))
            self.names.add(asked.raas)
        if not given:
            await asyncio.sleep(0.01)
        return messages.TasksLeased(tasks=given, notices=self._notices())

    async def do_tasks_renew(self, request: Request) -> messages.Message:
        self.renewed = (await read_message(request, messages.RenewLeases)).tasks
        return messages.LeasesRenewed(notices=self._notices())

    async def do_tasks_fail(self, request: Request) -> messages.Message:
        asked = await read_message(request, messages.FailTask)
        self.failed[asked.task] = asked
        return messages.Done()

    async def do_raas_leave(self, request: Request) -> messages.Message:
        self.left.append(await read_message(request, messages.LeaveRaas))
        return messages.Done()

    async def do_groups(self, request: Request) -> messages.Message:
        group = ReceivedGroup(await request.body())
        if self.refuses:
            raise Refused(400, self.refuses)
        self.groups.append(group)
        return messages.GroupPushed(status="accepted")
