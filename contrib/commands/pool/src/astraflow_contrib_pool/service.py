"""The HTTP side of a pool."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from astraflow_contrib_pool.access import PoolAccess, PoolGrant, may, tenant_of
from astraflow_contrib_pool.broker.broker import Broker
from astraflow_contrib_pool.broker.ledger import ledger_rows
from astraflow_contrib_pool.broker.limits import MinuteLimit
from astraflow_contrib_pool.broker.reports import exporter_text, pool_status, waits_for
from astraflow_contrib_pool.messages import DrainHost, LeaveHost, LeaveRun, RenewHost, RenewRun
from astraflow_core.errors import Refused
from astraflow_runtime.audit_log import AuditLine, write_audit
from astraflow_wire.http.access import Grant
from astraflow_wire.http.server import create_app, reply
from astraflow_wire.messages import decode

log = logging.getLogger("astraflow.pool")
MAX_BODY_BYTES = 4 << 20


class PoolService:
    """The ``app`` of a pool whose folder is ``directory``. ``clock``: steady seconds; ``wall``: seconds since 1970."""

    def __init__(
        self,
        broker: Broker,
        token: str,
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.broker, self._directory = broker, directory
        self._clock, self._wall = clock, wall
        self._began = clock()
        self._refusals = dict[str, MinuteLimit]()
        tenants = {name: table.generation for name, table in broker.file.tenants.items()}
        access = PoolAccess(token, tenants)
        self.app = create_app("pool", token, MAX_BODY_BYTES, access=access, rights=self._may)
        self.app.post("/v1/runs/renew")(self._renew_run)
        self.app.post("/v1/runs/leave")(self._leave_run)
        self.app.post("/v1/hosts/renew")(self._renew_host)
        self.app.post("/v1/hosts/leave")(self._leave_host)
        self.app.post("/v1/hosts/drain")(self._drain_host)
        self.app.get("/v1/health")(self._health)
        self.app.get("/v1/status")(self._status)
        self.app.get("/v1/ledger")(self._ledger)
        self.app.get("/metrics")(self._metrics)

    def _may(self, grant: Grant, method: str, path: str) -> bool:
        """As :func:`may`; what is refused goes to the audit log, within its limit a minute."""
        if may(grant, method, path):
            return True
        refusals = self._refusals.setdefault(str(grant), MinuteLimit())
        if not refusals.wait_s(self._clock()):
            refusals.note(self._clock())
            self._audit(grant, path[:200], "refused: no right")
        return False

    def _audit(self, grant: Grant | None, request: str, outcome: str, **asked: str) -> None:
        role = grant.kind if isinstance(grant, PoolGrant) else "pool"
        name = "" if grant is None else grant.name
        who = asked.pop("author", "")
        line = AuditLine(
            request=request, outcome=outcome, asked=dict(asked), by="pool", who=who, role=role, name=name
        )  # fmt: skip
        write_audit(self._directory, line)

    async def _renew_run(self, request: Request) -> Response:
        grant: Grant = request.scope["grant"]
        if (tenant := tenant_of(grant)) is None:
            raise Refused(403, "a run joins with the token of its tenant (`astraflow pool token`)")
        message = decode(await request.body(), RenewRun)
        new = f"{tenant}/{message.run}" not in self.broker.runs
        answer = self.broker.renew_run(tenant, message, self._clock(), self._wall())
        if new:
            self._audit(
                grant, "/v1/runs/renew", "joined", run=message.run, directory=message.directory
            )
        waits = waits_for(self.broker, f"{tenant}/{message.run}", self._clock())
        return reply(msgspec.structs.replace(answer, waits_for=waits))

    async def _leave_run(self, request: Request) -> Response:
        grant: Grant = request.scope["grant"]
        if (tenant := tenant_of(grant)) is None:
            raise Refused(403, "a run leaves with the token of its tenant")
        message = decode(await request.body(), LeaveRun)
        answer = self.broker.leave_run(tenant, message, self._clock(), self._wall())
        self._audit(grant, "/v1/runs/leave", "left", run=message.run)
        return reply(answer)

    async def _renew_host(self, request: Request) -> Response:
        grant: Grant = request.scope["grant"]
        message = decode(await request.body(), RenewHost)
        new = message.host not in self.broker.hosts
        answer = self.broker.renew_host(message, self._clock(), self._wall())
        if new:
            self._audit(grant, "/v1/hosts/renew", "joined", host=message.host)
        return reply(answer)

    async def _leave_host(self, request: Request) -> Response:
        message = decode(await request.body(), LeaveHost)
        answer = self.broker.leave_host(message, self._clock(), self._wall())
        self._audit(request.scope["grant"], "/v1/hosts/leave", "left", host=message.host)
        return reply(answer)

    async def _drain_host(self, request: Request) -> Response:
        message = decode(await request.body(), DrainHost)
        grant, author = request.scope["grant"], message.author
        try:
            answer = self.broker.drain_host(message, self._clock(), self._wall())
        except Refused as error:
            self._audit(grant, "/v1/hosts/drain", f"refused: {error}", host=message.host, author=author)  # fmt: skip
            raise
        self._audit(grant, "/v1/hosts/drain", "done", host=message.host, author=author)
        return reply(answer)

    async def _health(self) -> Response:
        return JSONResponse({"status": "ready"})

    async def _status(self, request: Request) -> Response:
        now = self._clock()
        self.broker.advance(now, self._wall())
        tenant = tenant_of(request.scope["grant"])
        status = pool_status(self.broker, now, now - self._began, tenant)
        return JSONResponse(msgspec.to_builtins(status))

    async def _ledger(self, request: Request) -> Response:
        self.broker.advance(self._clock(), self._wall())
        tenant = tenant_of(request.scope["grant"])
        accounts = self.broker.accounts
        runs = [run for run in sorted(accounts) if tenant is None or run.startswith(f"{tenant}/")]
        return JSONResponse(ledger_rows(accounts, self.broker.file.prices, runs))

    async def _metrics(self) -> Response:
        now = self._clock()
        self.broker.advance(now, self._wall())
        text = exporter_text(pool_status(self.broker, now, now - self._began, None))
        return Response(text, media_type="text/plain; version=0.0.4")

    async def keep_time(self) -> None:
        """Let runs and hosts that are silent expire, until cancelled."""
        while True:
            self.broker.advance(self._clock(), self._wall())
            await asyncio.sleep(self.broker.file.pool.every_s)
