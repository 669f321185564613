"""A dataflow that a test scripts, and a real RaaS process against it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import httpx
from fastapi import Request
from msgspec.structs import replace

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import Refused
from astraflow_wire import messages
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.http.auth import bearer
from astraflow_wire.http.server import Server, create_app, read_message, reply

TOKEN = "secret"


def task(identifier: str = "t0", **changes: Any) -> messages.Task:
    """A task of four episodes of three tokens."""
    fields = {
        "id": identifier,
        "prompt_id": "p0",
        "data": {"prompt": "x12="},
        "group_size": 4,
        "sampling": messages.SamplingMessage(max_tokens=3),
        "lease_s": 30.0,
        "deadline_s": 10.0,
    }
    return messages.Task(**{**fields, **changes})


def announcement(version: int, policy: str = "solver") -> messages.AnnouncementMessage:
    return messages.AnnouncementMessage(
        policy=policy, version=version, transport="fake", endpoints=["x"], digest="d", size=10
    )


class FakeDataflow:
    """Leases ``tasks`` to any caller, sends ``notices``, and records the messages that it gets."""

    def __init__(self, token: str = TOKEN) -> None:
        self.notices: list[messages.Notices] = []
        self.announced: dict[tuple[str, int], messages.AnnouncementMessage] = {}
        self.revoked: list[messages.RevokedLease] = []
        self.tasks: list[messages.Task] = []
        self.leases: list[messages.LeaseTasks] = []
        self.renewals: list[messages.RenewLeases] = []
        self.registrations: list[messages.RegisterRaas] = []
        self.failures: list[messages.FailTask] = []
        self.groups: list[ReceivedGroup] = []
        self.left: list[messages.LeaveRaas] = []
        self.known = False
        self.taken = ""
        """Why no RaaS can register; empty if it can."""
        self.renew_s = 0.2
        self.changed = asyncio.Condition()
        self.app = create_app("dataflow", token, 1 << 24)
        self.server = Server(self.app, "127.0.0.1", 0)
        self._routes()

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.server.stop()

    async def tell(self, *notices: messages.Notices, tasks=()) -> None:
        self.notices += notices
        self.tasks += tasks
        await self._note()

    async def until(self, condition, seconds: float = 15.0):
        async def wait():
            async with self.changed:
                await self.changed.wait_for(condition)

        await asyncio.wait_for(wait(), seconds)

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _on_notices(self, seen: dict[str, int]) -> messages.Notices:
        """The next notices, with those of an earlier reply that may not have arrived."""
        notices = self.notices.pop(0) if self.notices else messages.Notices()
        listed = {(entry.policy, entry.version) for entry in notices.announcements}
        missed = [
            entry
            for key, entry in self.announced.items()
            if key not in listed and entry.version > seen.get(entry.policy, -1)
        ]
        self.announced |= {(entry.policy, entry.version): entry for entry in notices.announcements}
        self.revoked += notices.revoked
        return replace(
            notices, announcements=notices.announcements + missed, revoked=list(self.revoked)
        )

    def _routes(self) -> None:
        def keep(path, expected, store, answer):
            async def handle(request: Request):
                message = await read_message(request, expected)
                if path != "/v1/raas/register" and not self.known:
                    raise Refused(404, "register first")
                store.append(message)
                if path == "/v1/raas/register" and self.taken:
                    raise Refused(409, self.taken)
                response = reply(answer(message))
                await self._note()
                return response

            self.app.add_api_route(path, handle, methods=["POST"])

        def registered(message):
            self.known = True
            return messages.RaasRegistered(
                run="r",
                renew_s=self.renew_s,
                notices=self._on_notices({}),
                incarnation=len(self.registrations),
            )

        done = lambda message: messages.Done()  # noqa: E731
        keep("/v1/raas/register", messages.RegisterRaas, self.registrations, registered)
        keep("/v1/raas/leave", messages.LeaveRaas, self.left, done)
        keep("/v1/tasks/fail", messages.FailTask, self.failures, done)
        keep(
            "/v1/tasks/renew",
            messages.RenewLeases,
            self.renewals,
            lambda m: messages.LeasesRenewed(notices=messages.Notices()),
        )

        @self.app.post("/v1/tasks/lease")
        async def lease(request: Request):
            message = await read_message(request, messages.LeaseTasks)
            if not self.known:
                raise Refused(404, "register first")
            self.leases.append(message)
            number = len(self.leases)
            await self._note()

            def ends() -> bool:
                superseded = number != len(self.leases)
                return superseded or bool(
                    self.notices or not self.known or (message.free and self.tasks)
                )

            with contextlib.suppress(TimeoutError):
                await self.until(ends, min(message.wait_s, 0.3))
            if number != len(self.leases):
                return reply(messages.TasksLeased(tasks=[], notices=messages.Notices()))
            given = []
            free = message.free
            while self.tasks and free >= self.tasks[0].group_size:
                given.append(self.tasks.pop(0))
                free -= given[-1].group_size
            return reply(messages.TasksLeased(tasks=given, notices=self._on_notices(message.seen)))

        @self.app.post("/v1/groups")
        async def push(request: Request):
            self.groups.append(ReceivedGroup(await request.body()))
            await self._note()
            return reply(messages.GroupPushed(status="accepted"))


SERVE = """
import sys, logging
from pathlib import Path
from astraflow_core.config.models import RunConfig
from astraflow_runtime.raas.main import serve
logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
logging.getLogger("httpx").setLevel("WARNING")
config = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())
sys.exit(serve(config, Path(sys.argv[2]), "secret", sys.argv[3], "raas-0"))
"""


class RaasProcess:
    """A real RaaS process against a fake dataflow."""

    def __init__(self, config: RunConfig, directory: Path, url: str) -> None:
        self.config, self.directory, self.url = config, directory, url
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self):
        path = self.directory / "config.json"
        path.write_text(self.config.model_dump_json())
        self.log = self.directory / "raas.log"
        with self.log.open("wb") as out:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SERVE, str(path), str(self.directory), self.url,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        return self

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def end(self, seconds: float = 10.0) -> int:
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def get(self, path: str) -> str:
        """The reply of the RaaS's own HTTP server."""
        address = self.directory / "state" / "raas-0" / "raas.json"
        while not address.is_file():
            await asyncio.sleep(0.02)
        async with httpx.AsyncClient(headers=bearer(TOKEN), trust_env=False) as client:
            response = await client.get(json.loads(address.read_text())["url"] + path)
            return response.raise_for_status().text

    async def status(self) -> dict[str, Any]:
        return json.loads(await self.get("/v1/status"))

    def terminate(self) -> None:
        self.process.terminate()
