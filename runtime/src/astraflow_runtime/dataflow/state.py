"""All state of a run in the dataflow, and the operations on the whole of it."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import Refused
from astraflow_core.protocols.data_policy import Scale
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.capacity import expected_sequences
from astraflow_runtime.dataflow.fleet.balance import BalanceMonitor
from astraflow_runtime.dataflow.fleet.failures import FailureCounter
from astraflow_runtime.dataflow.fleet.raas import Fleet
from astraflow_runtime.dataflow.fleet.recorded import note_recorded
from astraflow_runtime.dataflow.fleet.recovery import VersionSearch
from astraflow_runtime.dataflow.fleet.trainers import TrainerRecord
from astraflow_runtime.dataflow.fleet.versions import VersionTable
from astraflow_runtime.dataflow.journal.entries import (
    EvaluationGivenUp,
    Leased,
    LeasesRevoked,
    Overdue,
    PromptsConsumed,
    RaasGone,
    Resumed,
    StopRequested,
)
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.records import Records
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline
from astraflow_runtime.dataflow.progress import Progress, RunState
from astraflow_runtime.dataflow.rollout_log import NO_ROLLOUTS, RolloutLog
from astraflow_runtime.dataflow.row_source import check_row_sources
from astraflow_runtime.dataflow.rows.settings import StreamSettings
from astraflow_runtime.dataflow.rows.stream import PolicyStream
from astraflow_runtime.dataflow.signals import NoSignals, Signals
from astraflow_runtime.dataflow.tasks.admission import PromptAdmission
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_runtime.dataflow.tasks.evaluation import Evaluations
from astraflow_runtime.dataflow.tasks.overlap import Overlap
from astraflow_runtime.dataflow.tasks.queue import Lease, TaskRecord, TaskTable
from astraflow_wire.messages import RevokedLease
from astraflow_wire.model_files.model_limits import ModelLimits

log = logging.getLogger(__name__)

KEPT_SAMPLES = 8
PROMPTS = "prompts"
"""Place of the data policies that decide on admission; other places are the names of policies."""

CHECKPOINTS_OVERDUE = 3
"""Intervals between checkpoints that may pass without a release before no new task is handed out. The release lags
one checkpoint behind, so that a run can also continue from the second newest."""

RENEWALS_PER_LEASE = 3
FIGURES_EVERY_S = 2.0
"""The longest time between two renewals, since these carry the figures of the live view."""


class FlowState:
    """The state that the parts of the dataflow share. ``clock``: monotonic seconds. ``limits``: policy → limits of
    its model, if any. ``replaying``: the journal of an earlier process is being replayed; nothing is decided then."""

    def __init__(
        self,
        config: RunConfig,
        *,
        cursor: PromptCursor,
        admission: PolicyPipeline,
        chains: Mapping[str, PolicyPipeline],
        eval_sets: Mapping[str, PromptSource],
        rule: Scale,
        clock: Callable[[], float],
        signals: Signals | None = None,
        steps: StepLog | None = None,
        limits: Mapping[str, ModelLimits] = MappingProxyType({}),
        rollouts: RolloutLog = NO_ROLLOUTS,
    ) -> None:
        run = config.run
        self.rollouts, self.config, self.clock = rollouts, config, clock
        self.group_size, self.max_staleness = run.group_size, run.max_staleness
        self.limits = dict.fromkeys(config.policies, ModelLimits()) | dict(limits)
        self.signals: Signals = signals or NoSignals()
        self.admission = PromptAdmission(cursor, admission)
        self.replaying = False
        self.started_at = self.last_progress = clock()
        self.progress = Progress(clock())
        self.versions = VersionTable(config.policies)
        self.train = TaskTable(
            "train", run.lease_s, run.episode_deadline_s, run.task_attempts, admission.on_ended
        )
        self.eval = TaskTable("eval", run.lease_s, run.episode_deadline_s, run.task_attempts)
        self.fleet = Fleet(run.lease_s * 2 / RENEWALS_PER_LEASE, run.lease_s)
        self.balance = BalanceMonitor(config.policies, rule)
        self.trainers = {policy: TrainerRecord(policy) for policy in config.policies}
        self.records = Records(steps, self.segments_needed, partial(note_recorded, self))
        self.streams = {
            policy: PolicyStream(policy, StreamSettings.of(config, policy), chains[policy])
            for policy in config.policies
        }
        check_row_sources({policy: s.row_source for policy, s in self.streams.items()})
        self.evaluations = Evaluations(
            eval_sets,
            self.eval,
            every=config.eval.every,
            samples=config.eval.samples,
            pass_threshold=config.eval.pass_threshold,
            policies=tuple(config.policies),
        )
        self.overlap = Overlap(eval_sets)
        self.rejected: Counter[str] = Counter()
        self.failures = FailureCounter(
            self.fleet,
            run.max_consecutive_failures,
            config.raas.replicas,
            run.max_environment_failures,
            run.group_size,
        )
        self.samples: deque[dict[str, Any]] = deque(maxlen=KEPT_SAMPLES)
        self.swaps: list[dict[str, Any]] = []
        self.recoveries: dict[str, VersionSearch] = {}

    @property
    def renew_s(self) -> float:
        """Seconds within which a RaaS renews its leases."""
        return min(self.config.run.lease_s / RENEWALS_PER_LEASE, FIGURES_EVERY_S)

    def live_streams(self) -> list[PolicyStream]:
        """Streams that need rows and whose trainer is present."""
        now, silence = self.clock(), self.config.run.deadline_s
        return [
            stream
            for policy, stream in self.streams.items()
            if not stream.done and self.trainers[policy].alive(now, silence)
        ]

    @property
    def newest(self) -> Mapping[str, int]:
        """Policy → newest announced version, -1 before the first."""
        return self.versions.newest

    @property
    def prompts_held_by(self) -> str:
        """The data policy that holds back prompts now; empty if none does."""
        return self.admission.held_by(self.train.live)

    def stream(self, policy: str) -> PolicyStream:
        """The stream of a policy that a trainer named; 400 if there is none."""
        if policy not in self.streams:
            known = ", ".join(sorted(self.streams))
            raise Refused(400, f"this run has no policy {policy!r}; its policies are {known}")
        return self.streams[policy]

    def segments_needed(self) -> set[int]:
        """Files of bodies of the journal with a row that may still be served."""
        rows = [row.body for stream in self.streams.values() for row in stream.rows_needed()]
        return {b.segment for b in [*rows, *(p.body for p in self.train.parts)] if b is not None}

    def chains_by_place(self) -> dict[str, PolicyPipeline]:
        """The lists of data policies: that of ``"prompts"``, and that of each policy."""
        return {PROMPTS: self.admission.chain} | {p: s.chain for p, s in self.streams.items()}

    @property
    def held_back(self) -> str:
        """Why no new task is leased: the disk is full, or the checkpoints of a trainer are overdue, so that ever more
        would be kept on the disk. Empty if neither is the case."""
        if self.records.write_error:
            return f"there is no disk space for the records of the run: {self.records.write_error}"
        if not (every := self.config.checkpoint.every):
            return ""
        for stream in self.streams.values():
            since = stream.updates - stream.released
            if not stream.done and since > CHECKPOINTS_OVERDUE * every:
                return (
                    f"the trainer of {stream.policy!r} has saved no checkpoint for {since} updates; one is due "
                    f"every {every}"
                )
        return ""

    def table_of(self, task: str) -> TaskTable:
        """The table that a task's name belongs to; that of training if it belongs to none."""
        return self.eval if self.eval.owns(task) else self.train

    def admit(self, prompt: Prompt) -> TaskRecord:
        """Make the prompt that the cursor gave last the next training task."""
        self.admission.chain.on_admitted(prompt)
        for name in self.overlap.note(prompt):
            if not self.replaying:
                log.warning(
                    "evaluation set %r is not held out: its prompt %r is also rolled out for training. The "
                    "summary has their number",
                    name,
                    prompt.id,
                )
        return self.train.add(prompt, self.group_size, position=self.admission.cursor.position - 1)

    @property
    def expected(self) -> dict[str, float]:
        """Policy → sequences expected from a task."""
        return expected_sequences(self.streams.values(), self.group_size)

    def lease(
        self,
        table: TaskTable,
        raas: str,
        capacity: int,
        name: str = "",
        after: Iterable[PromptsConsumed] = (),
    ) -> TaskRecord:
        """Lease the first task of a queue that a RaaS may have, or the one of this name. The journal gets the entries ``after``
        which it is leased with it."""
        expected = self.expected if table is self.train else None
        task = table.lease(raas, capacity, self.clock(), expected, self.versions.newest, name)
        self.records.append(*after, Leased(task=task.id, raas=raas, capacity=capacity))
        return task

    def lease_again(self, task: TaskRecord, raas: str, capacity: int) -> TaskRecord:
        """Lease a training task that another RaaS works on; the first result counts."""
        self.train.lease_again(task, raas, capacity, self.clock(), self.versions.newest)
        self.records.append(Leased(task=task.id, raas=raas, capacity=capacity, second=True))
        return task

    def overdue(self, table: TaskTable, task: TaskRecord, raas: str, reason: str) -> None:
        """A lease has expired."""
        self.records.append(Overdue(task=task.id, reason=reason, raas=raas))
        self.give_back(table, task, reason, blame=True, raas=raas)

    def raas_gone(self, raas: str, reason: str) -> None:
        """End the leases of a RaaS that was silent for too long."""
        self.records.append(RaasGone(raas=raas, reason=reason))
        self.fleet.give_up(raas, self.clock())
        self.give_back_all(raas, reason, blame=True)

    def revoke_all(self, raas: str, reason: str) -> None:
        """End the leases of a RaaS, if it has any, without blame for their tasks."""
        if self.train.held_by(raas) or self.eval.held_by(raas):
            self.records.append(LeasesRevoked(raas=raas, reason=reason))
            self.give_back_all(raas, reason, blame=False)

    def give_back(
        self, table: TaskTable, task: TaskRecord, reason: str, *, blame: bool, raas: str = ""
    ) -> None:
        """End the lease of ``raas`` (empty: of all) without a result; they get a notice to abort the task."""
        for lease in task.leases:
            if raas in ("", lease.raas):
                self._lease_ends(task, lease, reason)
        outcome = table.give_back(task, reason, blame=blame, raas=raas)
        if outcome is not None and table is self.eval:
            self.evaluations.fail(task, reason)
        self.signals.work()

    def decided(self, task: TaskRecord, raas: str) -> None:
        """The result of ``raas`` ends the task; another RaaS that works on it too gets a notice to abort it."""
        for lease in task.leases:
            self._lease_ends(task, lease, "" if lease.raas == raas else f"{raas!r} was first")
        self.table_of(task.id).decide(task, raas)

    def _lease_ends(self, task: TaskRecord, lease: Lease, revoked: str) -> None:
        """Count the busy slots of a lease that ends, and notify its RaaS of the reason, if it does not know it."""
        self.balance.task_ended(lease.raas, (self.clock() - lease.since) * task.missing)
        holder = self.fleet.get(lease.raas)
        if revoked and holder is not None and holder.health in ("alive", "suspect"):
            holder.revoked[task.id] = RevokedLease(task=task.id, reason=revoked)
            self.signals.raas(holder.name)

    def give_back_all(self, raas: str, reason: str, *, blame: bool) -> None:
        """End all leases of a RaaS."""
        for table in (self.train, self.eval):
            for task in table.tasks_of(raas):
                self.give_back(table, task, reason, blame=blame, raas=raas)

    def advance_evaluations(self) -> None:
        """Conclude, start and host evaluations, and finish the run after the last one."""
        changed = False
        while self._advance_evaluation():
            changed = True
        if changed:
            self.last_progress = self.clock()
            self.signals.every_raas()
            self.signals.work()
        if self.progress.state is RunState.FINISHING and self.evaluations.idle:
            self._move(RunState.FINISHED, "all updates are done")

    def _advance_evaluation(self) -> bool:
        evaluations, now = self.evaluations, self.clock()
        if (entry := evaluations.conclude(now)) is not None:
            self.records.log({"eval": entry})
            return True
        if evaluations.start_next(now):
            return True
        if evaluations.active is None or self.replaying:
            return False
        reachable = self.versions.available(evaluations.active.versions)
        if not reachable and evaluations.is_unservable(self.fleet):
            self.give_up_evaluation(
                "the trainer that published them exited, and its weights were lost"
            )
            return True
        return evaluations.host(self.fleet, lambda raas: len(self.train.held_by(raas)))

    def give_up_evaluation(self, reason: str) -> None:
        """Give up the rest of the running evaluation."""
        self.records.append(EvaluationGivenUp(reason=reason))
        self.evaluations.give_up(reason)

    def start_rollouts(self) -> None:
        """Start rollouts: every policy has a version."""
        self._move(RunState.RUNNING, "rolling out and training")

    def reopen_run(self, reason: str) -> None:
        """Return to the state ``running``: there is work again."""
        if self.progress.state is RunState.FINISHING:
            self._move(RunState.RUNNING, reason)

    def restore(self, journal: Journal, *, resumed: bool) -> None:
        """Continue after a replay, and write to the journal from now on. Every RaaS and trainer gets its full timeout
        for the next heartbeat; with ``resumed`` no earlier participant survives."""
        now = self.clock()
        self.records.begin(journal)
        if resumed:
            self.records.append(Resumed())
            self.resume()
        for table in (self.train, self.eval):
            table.extend_all(now)
        self.fleet.restore(now)
        for trainer in self.trainers.values():
            trainer.heard(now)
        self.started_at = self.last_progress = now

    def resume(self) -> None:
        """The run was restarted after its end: tasks are queued again, and versions are gone."""
        self._end_leases("the run was restarted")
        for record in self.fleet.present():
            self.fleet.leave(record.name, self.clock())
        for policy, trainer in self.trainers.items():
            trainer.registered = trainer.failed = trainer.saw_end = trainer.left = False
            self.versions.withdraw(policy)
        self.progress.reopen("the run was restarted", self.clock(), self.versions.complete)

    def finish_if_done(self) -> None:
        """Start the last evaluation once every policy has made its updates."""
        all_there = self.versions.available(self.versions.newest)
        running = self.progress.state is RunState.RUNNING
        if running and all_there and all(s.done for s in self.streams.values()):
            self._move(RunState.FINISHING, "all updates are done; evaluating the last versions")
            for task in self.train.leased():
                self.give_back(self.train, task, "all updates are done", blame=False)
            self.evaluations.require(self.versions.newest, self.clock())
            self.advance_evaluations()

    def stop(self, reason: str) -> None:
        """End the run cleanly: trainers finish their step, and no further batch is served."""
        if self._move(RunState.STOPPING, reason):
            self.records.append(StopRequested(reason=reason))
            self._end_leases(f"the run ends: {reason}")
            self.settle()

    def fail(self, reason: str, user: bool = False) -> None:
        """End the run as failed, by an error of the ``user`` or not; the first reason is kept."""
        if not self.replaying and self._move(RunState.FAILED, reason):
            self.progress.users_mistake = user
            self._end_leases(f"the run ends: {reason}")

    def settle(self) -> None:
        """Mark a stopping run as stopped once every trainer was informed or is gone."""
        silent = self.clock() - self.config.run.give_up_after_s
        told = all(
            t.saw_end or t.failed or not t.registered or (t.must_call and t.last_heard <= silent)
            for t in self.trainers.values()
        )
        if self.progress.state is RunState.STOPPING and told:
            self._move(RunState.STOPPED, self.progress.reason)

    @property
    def all_left(self) -> bool:
        """Whether no process will call again: trainers have saved, and RaaS have left."""
        trainers = all(
            trainer.failed
            or not trainer.registered
            or trainer.left
            or self.streams[policy].released >= self.streams[policy].updates
            for policy, trainer in self.trainers.items()
        )
        told = all(t.saw_end or t.failed or not t.registered for t in self.trainers.values())
        return trainers and told and not self.fleet.present()

    @property
    def updates(self) -> int:
        """The number of updates that all policies have made."""
        return sum(stream.updates for stream in self.streams.values())

    def close(self) -> None:
        """Close the records of the run."""
        self.records.close()
        self.rollouts.close()

    def _end_leases(self, reason: str) -> None:
        for table in (self.train, self.eval):
            for task in table.leased():
                self.give_back(table, task, reason, blame=False)

    def _move(self, state: RunState, reason: str) -> bool:
        if not self.progress.move(state, reason, self.clock()):
            return False
        self.last_progress = self.clock()
        self.signals.state()
        self.signals.every_raas()
        for policy in self.streams:
            self.signals.trainer(policy)
        self.signals.work()
        return True
