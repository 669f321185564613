"""A dataflow that a script drives: it serves what the script says, and records the messages of one RaaS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request, Response

from astraflow_core.errors import DeadlineExceeded, Refused, WireError
from astraflow_wire import messages
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.http.server import Server, create_app, read_message, reply

M = TypeVar("M", bound=messages.Message)

RENEW_S = 0.25
LONGEST_POLL_S = 0.25
OUTDATED = 4
"""Calls that may still carry the number of the registration before: they were under way."""
MAX_BODY_BYTES = 256 << 20


@dataclass
class LeasedTask:
    """A task that was given out: ``renewals`` since then, and those that did not name it."""

    task: messages.Task
    renewals: int = 0
    unnamed: int = 0


class ScriptedDataflow:
    """Serves one RaaS. What a script sets: ``queue`` of tasks, :meth:`announce`, ``pins``, :meth:`revoke`,
    ``stop``, :meth:`forget`, :meth:`lose`, ``push_refused`` (503). What it sees: the lists of what was received, ``held``
    tasks, what is ``served``, and ``malformed``: what could not be read, in words; ``bad_pushes``: why pushes were. ``gone``: how it ended, if it did."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self.queue: list[messages.Task] = []
        self.pins: dict[str, int] = {}
        self.stop = False
        self.push_refused = False
        self.gone = ""
        self.registrations: list[messages.RegisterRaas] = []
        self.leases: list[messages.LeaseTasks] = []
        self.renewals: list[messages.RenewLeases] = []
        self.failures: list[messages.FailTask] = []
        self.groups: list[ReceivedGroup] = []
        self.left: list[messages.LeaveRaas] = []
        self.late: list[str] = []
        self.refused: list[bytes] = []
        self.malformed: list[str] = []
        self.bad_pushes: list[str] = []
        self.greedy: list[str] = []
        self.held: dict[str, LeasedTask] = {}
        self.served: dict[str, int] = {}
        self._announced: dict[str, messages.AnnouncementMessage] = {}
        self._revoked: dict[str, messages.RevokedLease] = {}
        self._lost: dict[str, int] = {}
        self._known = False
        self._outdated = 0
        self._changed = asyncio.Condition()
        self._app = create_app("scripted dataflow", token, MAX_BODY_BYTES)
        self.server = Server(self._app, host, port)
        self._routes()

    # -- the script's side -----------------------------------------------------------------------

    async def announce(self, entry: messages.AnnouncementMessage) -> None:
        """Announce a version, in every reply until the RaaS acknowledges it."""
        self._announced[entry.policy] = entry
        await self.note()

    async def give(self, *tasks: messages.Task) -> None:
        """Queue tasks."""
        self.queue += tasks
        await self.note()

    async def revoke(self, task: str) -> None:
        """The lease of a task is lost; a push would be answered 409."""
        self._revoked[task] = messages.RevokedLease(task=task, reason="the check took it back")
        self.held.pop(task, None)
        await self.note()

    async def forget(self) -> None:
        """Know the RaaS no more, as after a restart or a long silence: 404 until it registers again."""
        self._known = False
        self.held.clear()
        await self.note()

    async def lose(self, entries: Mapping[str, messages.AnnouncementMessage], version: int) -> None:
        """Go on from an older copy of the journal: ``version`` and all tasks were lost, ``entries`` are announced."""
        self._lost = dict.fromkeys(entries, version)
        self._announced = dict(entries)
        for task in list(self.held):
            await self.revoke(task)
        await self.note()

    async def until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for ``condition``; :class:`DeadlineExceeded` after ``seconds``."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise DeadlineExceeded("the RaaS", what, seconds) from None

    async def note(self) -> None:
        """Something changed."""
        async with self._changed:
            self._changed.notify_all()

    @property
    def polls(self) -> int:
        """Leases and renewals so far."""
        return len(self.leases) + len(self.renewals)

    # -- the side of the RaaS --------------------------------------------------------------------

    def _notices(
        self, message: messages.LeaseTasks | messages.RenewLeases | None = None
    ) -> messages.Notices:
        """The reply to ``message``; ``None``: to a registration."""
        serving = message.serving if message else {}
        seen, digests = (message.seen, message.digests) if message else ({}, {})
        known = {**serving, **seen}
        lost = {p for p, v in self._lost.items() if v in (serving.get(p), known.get(p))}
        return messages.Notices(
            announcements=[
                entry
                for policy, entry in self._announced.items()
                if policy in lost or entry.version > seen.get(policy, -1)
            ],
            pins=dict(self.pins),
            revoked=list(self._revoked.values()),
            stop=self.stop,
            discard={policy: digests.get(policy, "") for policy in lost},
        )

    def _check_known(self) -> None:
        if not self._known:
            raise Refused(404, "this RaaS is not registered: register (again)")

    async def _read(self, request: Request, expected: type[M]) -> M:
        try:
            message = await read_message(request, expected)
            if (given := getattr(message, "incarnation", None)) is not None and self._known:
                self._check_incarnation(given)
        except WireError as error:
            self.malformed.append(f"{request.url.path}: {error}")
            raise
        return message

    def _check_incarnation(self, given: int) -> None:
        """As the real dataflow; :class:`WireError` if it is not the number of any registration, or is still
        the previous one."""
        number = len(self.registrations)
        if given == number:
            return
        if not 1 <= given < number:
            raise WireError(f"`incarnation` is {given}; register answered {number}")
        self._outdated += 1
        if self._outdated > OUTDATED:
            raise WireError(f"`incarnation` is still {given}, after register was answered {number}")
        raise Refused(409, f"incarnation {given} is superseded by {number}")

    def _routes(self) -> None:
        post = self._app.router.add_route
        for path, handle in {
            "/v1/raas/register": self._register,
            "/v1/raas/leave": self._on_leave,
            "/v1/tasks/lease": self._lease,
            "/v1/tasks/renew": self._renew,
            "/v1/tasks/fail": self._fail,
            "/v1/groups": self._push,
        }.items():
            post(path, handle, methods=["POST"])

    async def _register(self, request: Request) -> Response:
        self.registrations.append(await self._read(request, messages.RegisterRaas))
        self._known, self._outdated = True, 0
        await self.note()
        return reply(
            messages.RaasRegistered(
                run="check",
                renew_s=RENEW_S,
                notices=self._notices(),
                incarnation=len(self.registrations),
            )
        )

    async def _on_leave(self, request: Request) -> Response:
        self.left.append(await self._read(request, messages.LeaveRaas))
        await self.note()
        return reply(messages.Done())

    async def _lease(self, request: Request) -> Response:
        message = await self._read(request, messages.LeaseTasks)
        self._check_known()
        self.leases.append(message)
        self.served = dict(message.serving)
        self._check_free_slots(message)
        await self.note()

        def due() -> bool:
            notices = self._notices(message)
            return bool(
                notices.announcements or notices.stop or not self._known or self._fitting(message)
            )

        wait_s = min(max(message.wait_s, 0.0), LONGEST_POLL_S)
        try:
            await self.until(due, "nothing", wait_s)
        except DeadlineExceeded:
            return reply(messages.TasksLeased(tasks=[], notices=self._notices(message)))
        self._check_known()
        given = self._fitting(message)
        for task in given:
            self.queue.remove(task)
            self.held[task.id] = LeasedTask(task)
        await self.note()
        return reply(messages.TasksLeased(tasks=given, notices=self._notices(message)))

    def _fitting(self, message: messages.LeaseTasks) -> list[messages.Task]:
        free, given = message.free, []
        for task in self.queue:
            if task.group_size <= free:
                given.append(task)
                free -= task.group_size
        return given

    def _check_free_slots(self, message: messages.LeaseTasks) -> None:
        capacity = self.registrations[-1].capacity
        if message.free > max(capacity, *(task.group_size for task in self.queue), 0):
            self.greedy.append(f"asked for {message.free} episodes, having said {capacity}")

    async def _renew(self, request: Request) -> Response:
        message = await self._read(request, messages.RenewLeases)
        self._check_known()
        self.renewals.append(message)
        self.served = dict(message.serving)
        for name, held in self.held.items():
            held.renewals += 1
            held.unnamed += name not in message.tasks
        await self.note()
        return reply(messages.LeasesRenewed(notices=self._notices(message)))

    async def _fail(self, request: Request) -> Response:
        message = await self._read(request, messages.FailTask)
        self.failures.append(message)
        self.held.pop(message.task, None)
        await self.note()
        return reply(messages.Done())

    async def _push(self, request: Request) -> Response:
        body = await request.body()
        if self.push_refused:
            self.refused.append(body)
            await self.note()
            return Response("a moment please", status_code=503)
        try:
            group = ReceivedGroup(body)
            self._check_incarnation(group.header.incarnation)
        except WireError as error:
            self.malformed.append(f"/v1/groups: {error}")
            self.bad_pushes.append(str(error))
            raise
        finally:
            await self.note()
        task = group.header.task
        if task not in self.held:
            if any(known.header.task == task for known in self.groups):
                return reply(messages.GroupPushed(status="duplicate"))
            self.late.append(task)
            await self.note()
            raise Refused(409, f"task {task} is not yours (any longer)")
        self.groups.append(group)
        self.held.pop(task)
        await self.note()
        return reply(messages.GroupPushed(status="accepted"))
