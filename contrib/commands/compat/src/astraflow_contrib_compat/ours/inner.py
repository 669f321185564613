"""The routes of a dataflow that our RaaS call, over the tasks of a public one."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request, Response

from astraflow_contrib_compat.ours.tasks import OwnRaas, OwnTasks
from astraflow_wire import messages
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.http.server import create_app, read_message, reply

MOST_BODY = 256 << 20
LONGEST_WAIT_S = 30.0


def inner_app(tasks: OwnTasks, run: str, token: str) -> FastAPI:
    """What a RaaS of ours needs of its dataflow, for those who have ``token``."""
    app = create_app("dataflow of the public protocol", token, MOST_BODY)

    async def register(request: Request) -> Response:
        asked = await read_message(request, messages.RegisterRaas)
        incarnation = await tasks.register(asked)
        told = tasks.notices(tasks.raas[asked.raas])
        return reply(
            messages.RaasRegistered(
                run=run, renew_s=tasks.lease_s / 4, notices=told, incarnation=incarnation
            )
        )

    async def heard(asked: messages.LeaseTasks | messages.RenewLeases) -> OwnRaas:
        raas = tasks.check_in(asked.raas, asked.incarnation)
        await tasks.report(raas, asked.serving, asked.seen)
        return raas

    async def lease(request: Request) -> Response:
        asked = await read_message(request, messages.LeaseTasks)
        raas = await heard(asked)
        given = await tasks.lease(asked.raas, asked.free, min(asked.wait_s, LONGEST_WAIT_S))
        return reply(messages.TasksLeased(tasks=given, notices=tasks.notices(raas)))

    async def renew(request: Request) -> Response:
        asked = await read_message(request, messages.RenewLeases)
        raas = await heard(asked)
        tasks.renew(asked.raas, asked.tasks)
        return reply(messages.LeasesRenewed(notices=tasks.notices(raas)))

    async def fail(request: Request) -> Response:
        asked = await read_message(request, messages.FailTask)
        tasks.check_in(asked.raas, asked.incarnation)
        await tasks.fail(asked)
        return reply(messages.Done())

    async def leave(request: Request) -> Response:
        asked = await read_message(request, messages.LeaveRaas)
        tasks.check_in(asked.raas, asked.incarnation)
        await tasks.leave(asked.raas)
        return reply(messages.Done())

    async def push(request: Request) -> Response:
        group = await asyncio.to_thread(ReceivedGroup, await request.body())
        tasks.check_in(group.header.raas, group.header.incarnation)
        await tasks.push(group)
        return reply(messages.GroupPushed(status="accepted"))

    for path, handler in (
        ("raas/register", register), ("raas/leave", leave), ("tasks/lease", lease), ("tasks/renew", renew),
        ("tasks/fail", fail), ("groups", push),
    ):  # fmt: skip
        app.add_api_route(f"/v1/{path}", handler, methods=["POST"])
    return app
