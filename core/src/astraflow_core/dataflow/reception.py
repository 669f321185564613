"""Pushed groups: verified, recognised, judged, stamped and buffered."""

from __future__ import annotations

from astraflow_core.dataflow.journal import Accepted, Ended
from astraflow_core.dataflow.rows import Row, share_of, trained_tokens
from astraflow_core.dataflow.state import FlowState
from astraflow_core.dataflow.tasks import TaskRecord, TaskTable
from astraflow_core.errors import Refused, WireError
from astraflow_core.wire.groups import ReceivedGroup
from astraflow_core.wire.messages import GroupPushed

EMPTY = "no trajectory"


class Reception:
    """Takes groups from RaaS. The received bytes are what the buffer holds and the journal keeps."""

    def __init__(self, state: FlowState) -> None:
        self._state = state
        self._groups = 0
        self._trajectories = 0

    def push(self, body: bytes) -> GroupPushed:
        """Take a group in. :class:`WireError` if it is malformed, 409 if its sender does not hold the
        task (any more)."""
        state = self._state
        received = ReceivedGroup(body)
        header = received.header
        table = state.eval if state.eval.owns(header.task) else state.train
        if not table.owns(header.task):
            raise Refused(409, table.why_not(header.task, header.raas))
        task = table.get(header.task)
        if task is None:
            return self._after_the_end(table, header.task, header.raas)
        if task.lease is None or task.lease.raas != header.raas:
            table.late += 1
            raise Refused(409, table.why_not(header.task, header.raas))
        self._check(received, task)
        record = state.fleet.get(header.raas)
        if record is not None:
            record.last_heard = state.clock()
        state.last_progress = state.clock()
        if table is state.eval:
            return self._evaluated(received, task)
        return self._judge(received, task)

    def _after_the_end(self, table: TaskTable, name: str, raas: str) -> GroupPushed:
        if table.outcome(name) in ("accepted", "rejected") and table.ended_by(name) == raas:
            table.duplicates += 1
            return GroupPushed(status="duplicate")
        table.late += 1
        raise Refused(409, table.why_not(name, raas))

    def _check(self, received: ReceivedGroup, task: TaskRecord) -> None:
        header = received.header
        if header.prompt_id != task.prompt.id:
            raise WireError(
                f"task {task.id} is about prompt {task.prompt.id!r}, the group about {header.prompt_id!r}"
            )
        if header.eval_set != task.eval_set:
            raise WireError(
                f"task {task.id} is of eval set {task.eval_set!r}, not {header.eval_set!r}"
            )
        if header.trajectories > task.group_size:
            raise WireError(f"{header.trajectories} trajectories for a task of {task.group_size}")
        newest = self._state.versions.newest
        for policy in {sequence.policy for sequence in header.sequences}:
            if policy not in newest:
                raise WireError(
                    f"a sequence names the policy {policy!r}; there are {', '.join(newest)}"
                )
        for index, sequence in enumerate(header.sequences):
            versions = received.versions[received.offsets[index] : received.offsets[index + 1]]
            highest = int(versions.max())
            if highest > newest[sequence.policy]:
                raise WireError(
                    f"a token of {sequence.policy!r} has version {highest}; "
                    f"the newest announced is {newest[sequence.policy]}"
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

    def _evaluated(self, received: ReceivedGroup, task: TaskRecord) -> GroupPushed:
        self._state.evaluations.finish(task, received)
        self._state.advance_evaluations()
        return GroupPushed(status="accepted")

    def _judge(self, received: ReceivedGroup, task: TaskRecord) -> GroupPushed:
        state, header = self._state, received.header
        state.failed_in_a_row = 0
        trained = trained_tokens(received)
        buffered: dict[str, list[Row]] = {}
        reasons: dict[str, str] = {}
        accepted = False
        for policy, stream in state.streams.items():
            newest = state.versions.newest[policy]
            share = share_of(received, trained, policy, task.prompt, newest)
            stream.observe(len(share.indexes) if share else 0, header.trajectories)
            if share is None:
                continue
            stream.note_reward(share.statistics.mean)
            state.admission.observe(share.summary)
            verdict, rows = stream.offer(received, share, self._groups, self._trajectories, newest)
            if verdict.accepted:
                accepted = True
                buffered[policy] = rows
            else:
                reasons[policy] = verdict.reason
        if not header.sequences:
            reasons = dict.fromkeys(state.streams, EMPTY)
        self._show(received)
        if accepted:
            self._accept(received, task, buffered)
            return GroupPushed(status="accepted", reasons=reasons)
        reason = "; ".join(dict.fromkeys(reasons.values()))
        state.rejected[reason] += 1
        state.train.end(task, "rejected")
        state.journal(Ended(task=task.id, outcome="rejected", reason=reason))
        state.signals.work()
        return GroupPushed(status="rejected", reasons=reasons)

    def _accept(
        self, received: ReceivedGroup, task: TaskRecord, buffered: dict[str, list[Row]]
    ) -> None:
        state = self._state
        state.train.end(task, "accepted")
        state.journal_body(received.body)
        state.journal(
            Accepted(
                task=task.id,
                group=self._groups,
                first_trajectory=self._trajectories,
                rows={p: [(r.index, r.item.arrival) for r in rows] for p, rows in buffered.items()},
            )
        )
        self._groups += 1
        self._trajectories += received.header.trajectories
        for policy, rows in buffered.items():
            if rows and state.streams[policy].may_cut:
                state.signals.trainer(policy)
        state.signals.work()

    def _show(self, received: ReceivedGroup) -> None:
        header = received.header
        if header.texts:
            rewards = [sequence.reward for sequence in header.sequences]
            self._state.samples.append(
                {"prompt_id": header.prompt_id, "texts": header.texts, "rewards": rewards}
            )
