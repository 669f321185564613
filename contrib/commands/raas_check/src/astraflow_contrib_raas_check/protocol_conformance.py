"""The demands on a RaaS, in the order in which they are tried; each is a short script for the dataflow."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from astraflow_contrib_raas_check.outcome import RequirementFailed
from astraflow_contrib_raas_check.scripted import ScriptedDataflow
from astraflow_contrib_raas_check.weights import NOWHERE
from astraflow_core.errors import DeadlineExceeded
from astraflow_core.types import Prompt
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.messages import AnnouncementMessage, FailTask, SamplingMessage, Task

Publish = Callable[[int], Awaitable[Mapping[str, AnnouncementMessage]]]
FAR_TOO_LONG = 1_000_000
AT_ONCE = 4
BEATS = 3
UNNAMED = 1
"""Renewals that may leave a task out: one may have been on its way when the task was given."""


@dataclass
class Script:
    """Demands on the RaaS that talks to ``flow``. ``publish`` makes a version, and ``publish_anew`` does as a trainer that
    was started again, so that the number may be below others; ``policies`` are the run's,
    ``prompts`` what it is asked; ``seconds`` is the longest that any step may take."""

    flow: ScriptedDataflow
    publish: Publish
    publish_anew: Publish
    policies: tuple[str, ...]
    prompts: list[Prompt]
    sampling: SamplingMessage
    group_size: int
    seconds: float

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._versions = itertools.count()

    # -- building blocks of the scripts -----------------------------------------------------------

    def _task(self, **changes: Any) -> Task:
        number = next(self._numbers)
        prompt = self.prompts[number % len(self.prompts)]
        task = Task(
            id=f"check-{number}",
            prompt_id=prompt.id,
            data=dict(prompt.data),
            group_size=self.group_size,
            sampling=self.sampling,
            lease_s=self.seconds,
            deadline_s=self.seconds,
        )
        return replace(task, **changes)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            await self.flow.until(lambda: condition() or bool(self.flow.gone), what, self.seconds)
        except DeadlineExceeded:
            raise RequirementFailed(f"not within {self.seconds:g} s: {what}") from None
        if not condition():
            raise RequirementFailed(f"{self.flow.gone}; waited for: {what}")

    async def _announce(self, digest: str = "", endpoint: str = "") -> int:
        version = next(self._versions)
        for entry in (await self.publish(version)).values():
            if digest:
                entry = replace(entry, digest=digest)
            if endpoint:
                entry = replace(entry, endpoints=[endpoint])
            await self.flow.announce(entry)
        return version

    async def _serves(self, version: int) -> None:
        wanted = dict.fromkeys(self.policies, version)
        await self._until(lambda: self.flow.served == wanted, f"serving {wanted} in lease or renew")

    @property
    def _served(self) -> set[int]:
        return set(self.flow.served.values())

    async def _rolled_out(self, *tasks: Task, given: bool = False) -> list[ReceivedGroup]:
        if not given:
            await self.flow.give(*tasks)
        names = [task.id for task in tasks]
        refused = len(self.flow.bad_pushes)

        def ended() -> bool:
            if len(self.flow.bad_pushes) > refused:
                raise RequirementFailed(f"its push was refused: {self.flow.bad_pushes[-1]}")
            pushed = {group.header.task for group in self.flow.groups}
            failed = {failure.task for failure in self.flow.failures}
            return set(names) <= pushed | failed

        await self._until(ended, f"POST /v1/groups for {', '.join(names)}")
        for failure in self.flow.failures:
            if failure.task in names:
                raise RequirementFailed(f"task {failure.task} was failed: {failure.error}")
        found = {group.header.task: group for group in self.flow.groups}
        return [found[name] for name in names]

    def _check_group(self, task: Task, group: ReceivedGroup, versions: set[int]) -> None:
        header = group.header
        said = header.prompt_id, header.eval_set
        if said != (task.prompt_id, task.eval_set):
            raise RequirementFailed(
                f"task {task.id} has prompt and set {task.prompt_id, task.eval_set}, but its group {said}"
            )
        if header.trajectories + header.rejected != task.group_size:
            raise RequirementFailed(
                f"a group of {header.trajectories} trajectories and {header.rejected} rejected ones for "
                f"group_size {task.group_size}"
            )
        strange = {sequence.policy for sequence in header.sequences} - set(self.policies)
        if strange:
            raise RequirementFailed(
                f"sequences of {sorted(strange)}; the run has {list(self.policies)}"
            )
        trained = group.loss_mask.astype(bool)
        if header.trajectories and not trained.any():
            raise RequirementFailed("no sampled token is marked in the loss mask")
        if (group.logprobs[trained] > 1e-4).any():
            raise RequirementFailed(f"a log-prob of {group.logprobs[trained].max():g}: above 0")
        seen = {int(version) for version in group.versions[trained]}
        if not seen <= versions:
            raise RequirementFailed(
                f"tokens of versions {sorted(seen)}; served were {sorted(versions)}"
            )

    async def _works(self) -> None:
        """Another task is rolled out by what is served."""
        task, before = self._task(), self._served
        (group,) = await self._rolled_out(task)
        self._check_group(task, group, before | self._served)

    async def _leased(self, task: Task) -> None:
        await self.flow.give(task)
        await self._until(
            lambda: task not in self.flow.queue, f"a lease with room for {self.group_size} episodes"
        )

    async def _notices_delivered(self) -> None:
        """Wait until two more polls were answered: all current notices have then arrived."""
        polls = self.flow.polls
        await self._until(lambda: self.flow.polls >= polls + BEATS, "more calls of lease or renew")

    # -- the demands ------------------------------------------------------------------------------

    async def registers(self) -> str:
        """It registers with the policies of the run and a capacity."""
        await self._until(lambda: bool(self.flow.registrations), "POST /v1/raas/register")
        hello = self.flow.registrations[0]
        if set(hello.policies) != set(self.policies):
            raise RequirementFailed(f"policies {hello.policies}; the run has {list(self.policies)}")
        if hello.capacity < 1 or not hello.raas:
            raise RequirementFailed(f"name {hello.raas!r} with a capacity of {hello.capacity}")
        return f"{hello.raas!r} with room for {hello.capacity} episodes"

    async def serves_first(self) -> str:
        """It asks for tasks only once it serves a version of every policy."""
        await self._until(lambda: self.flow.polls > 0, "POST /v1/tasks/lease or renew")
        version = await self._announce()
        await self._serves(version)
        wanted = set(self.policies)
        early = [one for one in self.flow.leases if one.free and set(one.serving) != wanted]
        if early:
            raise RequirementFailed(
                f"asked for {early[0].free} episodes while serving {early[0].serving}"
            )
        return f"serves version {version}"

    async def rolls_out(self) -> str:
        """It rolls out a task and pushes its group."""
        task = self._task()
        (group,) = await self._rolled_out(task)
        self._check_group(task, group, self._served)
        sampled = int(group.loss_mask.sum())
        return f"{group.header.trajectories} trajectories, {sampled} sampled tokens"

    async def keeps_room(self) -> str:
        """It rolls out several tasks, and asks for no more than its capacity."""
        tasks = [self._task() for _ in range(AT_ONCE)]
        for task, group in zip(tasks, await self._rolled_out(*tasks), strict=True):
            self._check_group(task, group, self._served)
        if self.flow.greedy:
            raise RequirementFailed(self.flow.greedy[0])
        return f"{AT_ONCE} tasks"

    async def renews(self) -> str:
        """It renews its leases, also when it has nothing to do."""
        before = len(self.flow.renewals)
        await self._until(
            lambda: len(self.flow.renewals) >= before + BEATS,
            f"{BEATS} calls of POST /v1/tasks/renew",
        )
        return f"{BEATS} renewals more"

    async def names_its_tasks(self) -> str:
        """Its renewals name the tasks that it holds, also those whose push must wait."""
        task = self._task()
        self.flow.push_refused = True
        try:
            await self._leased(task)
            held = self.flow.held[task.id]
            await self._until(lambda: held.renewals > UNNAMED + 1, "calls of POST /v1/tasks/renew")
        finally:
            self.flow.push_refused = False
        if held.unnamed > UNNAMED:
            raise RequirementFailed(
                f"{held.unnamed} of {held.renewals} renewals without a task that it held"
            )
        await self._until(lambda: task.id not in self.flow.held, "the end of that task")
        return f"{held.renewals - held.unnamed} of {held.renewals} renewals"

    async def pushes_again(self) -> str:
        """It pushes the same group again if the dataflow is unavailable for a moment (503)."""
        task = self._task()
        self.flow.push_refused = True
        before = len(self.flow.refused)
        try:
            await self._leased(task)
            await self._until(lambda: len(self.flow.refused) > before, "POST /v1/groups")
            await self._notices_delivered()
        finally:
            self.flow.push_refused = False
        await self._until(lambda: task.id not in self.flow.held, "POST /v1/groups after a 503")
        (group,) = await self._rolled_out(task, given=True)
        if bytes(group.body) != self.flow.refused[before]:
            raise RequirementFailed("the second push differs from the first")
        return "byte for byte the same"

    async def swaps(self) -> str:
        """It serves a new version without losing requests in flight."""
        tasks, before = [self._task() for _ in range(AT_ONCE)], self._served
        registered = len(self.flow.registrations)
        version = await self._announce()
        for task, group in zip(tasks, await self._rolled_out(*tasks), strict=True):
            self._check_group(task, group, before | {version})
            self._check_order(group)
        await self._serves(version)
        if len(self.flow.registrations) > registered:
            raise RequirementFailed("registered again during a swap")
        await self._works()
        return f"version {version}, with {AT_ONCE} tasks meanwhile"

    def _check_order(self, group: ReceivedGroup) -> None:
        for start, end in itertools.pairwise(group.offsets):
            versions = group.versions[start:end][group.loss_mask[start:end].astype(bool)]
            if (np.diff(versions) < 0).any():
                raise RequirementFailed(f"within a sequence versions go back: {versions.tolist()}")

    async def verifies(self) -> str:
        """It rejects weights without the announced digest, and continues with those it has."""
        bad = await self._announce(digest="0" * 32)
        await self._notices_delivered()
        await self._works()
        await self._notices_delivered()
        served = [one.serving for one in self.flow.leases]
        served += [one.serving for one in self.flow.renewals]
        if any(bad in versions.values() for versions in served):
            raise RequirementFailed(
                f"serves version {bad}, whose bytes have another digest than was announced"
            )
        return f"stays at version {max(self._served)}"

    async def outlives_the_trainer(self) -> str:
        """It continues while the publisher of weights is unreachable, and loads the next available
        version.
        """
        await self._announce(endpoint=NOWHERE)
        await self._notices_delivered()
        await self._works()
        version = await self._announce()
        await self._serves(version)
        return f"then version {version}"

    async def registers_again(self) -> str:
        """It registers again when the dataflow no longer knows it (404)."""
        before = len(self.flow.registrations)
        await self.flow.forget()
        await self._until(
            lambda: len(self.flow.registrations) > before, "POST /v1/raas/register after a 404"
        )
        await self._works()
        return "and continues"

    async def lets_go(self) -> str:
        """It aborts a task whose lease it has lost."""
        task = self._task()
        self.flow.push_refused = True
        try:
            await self._leased(task)
            await self.flow.revoke(task.id)
            await self._notices_delivered()
        finally:
            self.flow.push_refused = False
        await self._works()
        await self._notices_delivered()
        if self.flow.renewals and task.id in self.flow.renewals[-1].tasks:
            raise RequirementFailed(f"still names task {task.id} in renew, which was revoked")
        return (
            "aborted" if task.id not in self.flow.late else "its push was refused, and it continued"
        )

    async def discards(self) -> str:
        """It discards weights that the journal has lost, and loads the announced version, a lower one."""
        low, task = next(self._versions), self._task()
        lost = await self._announce()
        await self._serves(lost)
        entries = await self.publish_anew(low)
        self.flow.push_refused = True
        try:
            await self._leased(task)
            await self.flow.lose(entries, lost)
            await self._serves(low)
            said = len(self.flow.renewals) + BEATS
            await self._until(lambda: len(self.flow.renewals) >= said, "calls of renew")
            if task.id in self.flow.renewals[-1].tasks:
                raise RequirementFailed(f"still works on task {task.id}, begun with version {lost}")
        finally:
            self.flow.push_refused = False
        again = self._task()
        (group,) = await self._rolled_out(again)
        self._check_group(again, group, {low})
        return f"version {lost} for version {low}"

    async def keeps_pins(self) -> str:
        """It keeps a pinned version for an evaluation, and loads newer ones afterwards."""
        pinned = dict(self.flow.served)
        self.flow.pins = dict(pinned)
        await self._notices_delivered()
        version = await self._announce()
        await self._notices_delivered()
        task = self._task(pinned=pinned, eval_set="check")
        (group,) = await self._rolled_out(task)
        self._check_group(task, group, set(pinned.values()))
        self.flow.pins = {}
        await self._serves(version)
        return f"version {max(pinned.values())}, then {version}"

    async def refuses_what_is_too_long(self) -> str:
        """It fails a task whose prompt and max_tokens exceed the context, with the reason, and
        continues.
        """
        task = self._task(sampling=replace(self.sampling, max_tokens=FAR_TOO_LONG))
        await self.flow.give(task)

        def failed() -> list[FailTask]:
            return [failure for failure in self.flow.failures if failure.task == task.id]

        await self._until(
            lambda: bool(failed()), f"POST /v1/tasks/fail for {FAR_TOO_LONG} max_tokens"
        )
        failure = failed()[0]
        if not failure.error:
            raise RequirementFailed("it gave no reason")
        if not failure.fatal:
            raise RequirementFailed(
                "fatal is not set, so the task is retried although it cannot succeed"
            )
        await self._works()
        return failure.error

    async def speaks_well(self) -> str:
        """All that it sends is well-formed."""
        if self.flow.malformed:
            raise RequirementFailed(self.flow.malformed[0])
        return f"{self.flow.polls} polls, {len(self.flow.groups)} groups"

    async def leaves(self) -> str:
        """It leaves when a notice says stop."""
        self.flow.stop = True
        await self.flow.note()
        await self._until(lambda: bool(self.flow.left), "POST /v1/raas/leave")
        return self.flow.left[0].reason or "without a reason"
