"""Intake of pushed groups: verified, deduplicated, judged, annotated and buffered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from astraflow_core.errors import Refused, WireError
from astraflow_runtime.dataflow.fleet.incarnations import check_incarnation
from astraflow_runtime.dataflow.journal.entries import BodyLocation, Judged, Pushed
from astraflow_runtime.dataflow.policies.decisions import Decision, PromptRefusal
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.rows.group_watch import ABSENT
from astraflow_runtime.dataflow.rows.rows import PolicyShare, Row, shares_of, trained_tokens
from astraflow_runtime.dataflow.rows.stream import PolicyStream
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.partial_groups import PartialGroup, merge
from astraflow_runtime.dataflow.tasks.queue import Lease, TaskRecord, TaskTable, number_in
from astraflow_wire.columns import check_limits
from astraflow_wire.groups import GroupHeader, ReceivedGroup
from astraflow_wire.limits import cut
from astraflow_wire.messages import GroupPushed

log = logging.getLogger("astraflow.dataflow")

EMPTY = "no trajectory"
SHOWN_REWARDS = 256
"""The most rewards that are logged for a group; it may have many thousand sequences."""


class GroupIntake:
    """Accepts groups from RaaS. The buffer and the journal keep the bytes as received."""

    def __init__(self, state: FlowState) -> None:
        self._state = state
        self.next_trajectory = 0
        """Number in the run of the next trajectory that is accepted."""

    def accept(
        self, body: bytes, check_sender: Callable[[GroupHeader], None] = lambda header: None
    ) -> GroupPushed:
        """Accept a group, whose header ``check_sender`` may refuse. :class:`WireError` if it is malformed, 409 if its sender
        does not hold the lease of the task (any longer).
        """
        state = self._state
        received = ReceivedGroup(body)
        header = received.header
        check_sender(header)
        table = state.table_of(header.task)
        task = table.get(header.task)
        if task is None:
            if not table.owns(header.task):
                raise Refused(409, table.why_not_held(header.task, header.raas))
            return self._after_the_end(table, header.task, header.raas)
        check_incarnation(state, header)
        lease = task.lease_of(header.raas)
        if lease is None:
            table.late += 1
            raise Refused(409, table.why_not_held(header.task, header.raas))
        record = state.fleet.get(header.raas)
        if record is not None and record.unconfirmed:
            self._check_history(received, lease)
        self._check(received, task)
        if record is not None:
            record.last_heard = state.clock()
        state.last_progress = state.clock()
        self._show(header)
        told = msgspec.structs.replace(header, turns=[], episodes=[])
        if table is state.eval:
            told = msgspec.structs.replace(told, metrics={})
            state.records.append(Pushed(header=told, trained=[], accepted=True))
            return self.score(header, task)
        if self._wants_refill(header, task):
            return self._refill(received, told, task)
        if task.parts:
            body = merge([*(part.group for part in task.parts), received])
            received = ReceivedGroup(body)
            told = msgspec.structs.replace(received.header, episodes=[])
        trained = trained_tokens(received)
        first = self.next_trajectory
        answer, rows, judged = self.judge(received, trained, task)
        state.rollouts.pushed(
            received,
            task,
            judged,
            state.versions.newest,
            first if answer.status == "accepted" else -1,
        )
        place = state.records.keep_body(body) if rows else None
        self.persist(rows, place)
        state.records.append(
            Pushed(
                header=told,
                trained=trained.tolist(),
                accepted=answer.status == "accepted",
                body=place,
                judged=judged,
            )
        )
        state.signals.work()
        self._stop_if_fruitless()
        return answer

    def _stop_if_fruitless(self) -> None:
        """Stop a run of which no policy has anything to train on, however long it would wait."""
        state = self._state
        most = state.config.run.max_fruitless_groups
        if most is None:
            return
        watches = [stream.watch for stream in state.streams.values() if _is_watched(stream)]
        if not watches or any(watch.fruitless < most for watch in watches):
            return
        reasons = "; ".join(f"policy {watch.policy!r}: {watch.why}" for watch in watches)
        state.stop(
            f"the last {most} groups left no row to train on ({reasons}), as many as [run] max_fruitless_groups "
            "allows; see docs/does-not-learn.md"
        )

    def _wants_refill(self, header: GroupHeader, task: TaskRecord) -> bool:
        run, state = self._state.config.run, self._state
        return (
            header.late > 0
            and run.refill_groups
            and header.trajectories > 0
            and task.attempts + 1 < run.task_attempts
            and state.progress.state is RunState.RUNNING
        )

    def _refill(self, received: ReceivedGroup, told: GroupHeader, task: TaskRecord) -> GroupPushed:
        place = self._state.records.keep_body(received.body)
        rest = self.refill(received, task, place)
        entry = Pushed(header=told, trained=[], accepted=False, body=place, refill=rest.id)
        self._state.records.append(entry)
        self._state.signals.work()
        return GroupPushed(status="partial")

    def refill(
        self, part: ReceivedGroup, task: TaskRecord, place: BodyLocation | None
    ) -> TaskRecord:
        """Keep a partial group; returns the task for the rest."""
        self._state.failures.succeeded(part.header.raas)
        self._result_came(task, part.header.raas)
        return self._state.train.refill(task, PartialGroup(part, place))

    def _after_the_end(self, table: TaskTable, name: str, raas: str) -> GroupPushed:
        if (
            table.outcome(name) in ("accepted", "rejected", "refilled")
            and table.ended_by(name) == raas
        ):
            table.duplicates += 1
            return GroupPushed(status="duplicate")
        table.late += 1
        raise Refused(409, table.why_not_held(name, raas))

    @staticmethod
    def _check_history(received: ReceivedGroup, lease: Lease) -> None:
        """503 for a group with versions announced since its lease, if its RaaS has not yet said to this
        process what it serves: the journal may have lost their announcement and since given their
        numbers to others. The next heartbeat decides.
        """
        if not received.header.sequences:
            return
        each = np.maximum.reduceat(received.versions, received.offsets[:-1])
        for sequence, highest in zip(received.header.sequences, each.tolist(), strict=True):
            if highest > lease.newest.get(sequence.policy, -1):
                raise Refused(
                    503,
                    f"the dataflow was restarted: RaaS {received.header.raas!r} must renew its leases before it pushes "
                    f"tokens of version {highest} of {sequence.policy!r}",
                )

    def _check(self, received: ReceivedGroup, task: TaskRecord) -> None:
        header = received.header
        if header.prompt_id != task.prompt.id:
            raise WireError(
                f"task {task.id} is for prompt {task.prompt.id!r}, but the group is for {header.prompt_id!r}"
            )
        if header.eval_set != task.eval_set:
            raise WireError(
                f"task {task.id} belongs to eval set {task.eval_set!r}, not {header.eval_set!r}"
            )
        episodes = header.trajectories + header.rejected + header.late
        if episodes > task.missing:
            raise WireError(
                f"{header.trajectories} trajectories, {header.rejected} rejected and {header.late} late for a task "
                f"of {task.missing}"
            )
        newest = self._state.versions.newest
        policies = {sequence.policy for sequence in header.sequences}
        for policy in policies:
            if policy not in newest:
                raise WireError(
                    f"a sequence names policy {policy!r}; the policies are {', '.join(newest)}"
                )
        check_limits(received, self._state.limits)
        if not header.sequences:
            return
        most = np.maximum.reduce(received.versions)
        if not task.pinned and most <= min(newest[name] for name in policies):
            return
        each = np.maximum.reduceat(received.versions, received.offsets[:-1])
        for sequence, highest in zip(header.sequences, each.tolist(), strict=True):
            if highest > newest[sequence.policy]:
                raise WireError(
                    f"a token of {sequence.policy!r} has version {highest}; the "
                    f"newest announced version is {newest[sequence.policy]}"
                )
            pinned = task.pinned.get(sequence.policy, highest)
            if (
                task.pinned
                and sequence.min_version >= 0
                and {highest, sequence.min_version} != {pinned}
            ):
                raise WireError(
                    f"task {task.id} is pinned to version {pinned} of {sequence.policy!r}; a sequence "
                    f"has tokens of versions {sequence.min_version} to {highest}"
                )

    def score(self, header: GroupHeader, task: TaskRecord) -> GroupPushed:
        """Accept the result of an evaluation task."""
        self._state.decided(task, header.raas)
        self._state.evaluations.finish(task, header)
        self._state.advance_evaluations()
        return GroupPushed(status="accepted")

    def judge(
        self,
        received: ReceivedGroup,
        trained: np.ndarray[tuple[int], np.dtype[np.int64]],
        task: TaskRecord,
    ) -> tuple[GroupPushed, list[Row], list[Judged]]:
        """End a training task with its result. Returns the reply, the buffered rows, and the
        verdict of each policy. ``trained``: trained tokens of each sequence, int64 ``[n]``.
        """
        state, header = self._state, received.header
        state.failures.succeeded(header.raas)
        buffered: list[Row] = []
        judged: list[Judged] = []
        reasons: dict[str, str] = {}
        accepted = False
        self._result_came(task, header.raas)
        newest = state.versions.newest
        shares = shares_of(received, trained, task.prompt, newest)
        # The number of its task, so that a trainer knows which groups the rollout store keeps.
        group = number_in(task.id)
        for policy, stream in state.streams.items():
            share = shares.get(policy)
            stream.observe(len(share.indexes) if share else 0, header.trajectories)
            if share is None:
                self._watch(stream, None, ABSENT if header.sequences else EMPTY)
                continue
            stream.statistics.note(share)
            state.admission.chain.observe(share.summary)
            takers = [other for other in state.streams.values() if other.takes_from(policy)]
            ruling, rows = stream.offer(
                received, share, group, self.next_trajectory, newest[policy], bool(takers)
            )
            refused = ruling.refusal.reason if ruling.refusal else "stale"
            self._watch(stream, share, "" if rows else refused)
            judged.append(_verdict_entry(policy, ruling, rows, stream.done))
            tokens = int(share.summary.trained.sum())
            state.balance.group_pushed(header.raas, policy, tokens, ruling.refusal is None)
            if ruling.refusal is None:
                accepted = True
                buffered += rows
                if rows and stream.may_cut:
                    state.signals.trainer(policy)
                for other in takers if rows else ():
                    other.receive(rows)
                    if other.row_source.exclusive:
                        state.balance.rows_shared(other.policy, sum(row.trained for row in rows))
                    if other.may_cut:
                        state.signals.trainer(other.policy)
            else:
                reasons[policy] = ruling.refusal.reason
        if not header.sequences:
            reasons = dict.fromkeys(state.streams, EMPTY)
            for stream in state.streams.values():
                stream.reasons[EMPTY] += 1
        if accepted:
            state.train.end(task, "accepted")
            self.next_trajectory += header.trajectories
            return GroupPushed(status="accepted", reasons=reasons), buffered, judged
        state.rejected["; ".join(dict.fromkeys(reasons.values()))] += 1
        state.train.end(task, "rejected")
        return GroupPushed(status="rejected", reasons=reasons), buffered, judged

    def _result_came(self, task: TaskRecord, raas: str) -> None:
        """A training task ends with the result of ``raas``: what it took is the pace of that RaaS."""
        state, lease = self._state, task.lease_of(raas)
        record = state.fleet.get(raas)
        if lease is not None and record is not None:
            state.fleet.group_took(record, state.clock() - lease.since)
        state.decided(task, raas)

    def _watch(self, stream: PolicyStream, share: PolicyShare | None, why_none: str) -> None:
        if not _is_watched(stream):
            return
        for warning in stream.watch.note(share.statistics if share else None, why_none):
            if not self._state.replaying:
                log.warning("%s", warning)

    @staticmethod
    def persist(rows: Sequence[Row], place: BodyLocation | None) -> None:
        """Record the location of the body of these rows."""
        if place is not None:
            for row in rows:
                row.body = place

    def _show(self, header: GroupHeader) -> None:
        if header.turns:
            rewards = [sequence.reward for sequence in header.sequences[:SHOWN_REWARDS]]
            turns = [
                {"role": turn.role, "policy": turn.policy, "text": cut(turn.text)}
                for turn in header.turns
            ]
            self._state.samples.append(
                {"prompt_id": header.prompt_id, "turns": turns, "rewards": rewards}
            )


def _is_watched(stream: PolicyStream) -> bool:
    """Whether the policy still needs rows of its own."""
    return not (stream.done or stream.row_source.exclusive)


def _verdict_entry(policy: str, ruling: Decision, rows: Sequence[Row], done: bool) -> Judged:
    refusal = ruling.refusal or PromptRefusal("", "")
    return Judged(
        policy=policy,
        by=refusal.by,
        reason=refusal.reason,
        first=rows[0].item.arrival if rows else -1,
        indexes=[row.index for row in rows],
        shadow_rejections=[(doubt.by, doubt.reason) for doubt in ruling.shadow_rejections],
        only_lent=done and bool(rows),
    )
