"""All state of a run in the dataflow, and the few acts that concern all of it."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from astraflow_core.config.models import RunConfig
from astraflow_core.dataflow.admission import Admission
from astraflow_core.dataflow.balance import Balance
from astraflow_core.dataflow.capacity import expected_sequences
from astraflow_core.dataflow.chains import DataChain
from astraflow_core.dataflow.cursor import PromptCursor
from astraflow_core.dataflow.entries import (
    EvaluationGivenUp,
    Leased,
    Overdue,
    RaasGone,
    Resumed,
)
from astraflow_core.dataflow.evaluation import Evaluations
from astraflow_core.dataflow.fleet import Fleet, RaasRecord
from astraflow_core.dataflow.journal import Journal
from astraflow_core.dataflow.loans import check_loans
from astraflow_core.dataflow.progress import Progress, RunState
from astraflow_core.dataflow.records import Records
from astraflow_core.dataflow.signals import NoSignals, Signals
from astraflow_core.dataflow.steplog import StepLog
from astraflow_core.dataflow.stream import PolicyStream, StreamSettings
from astraflow_core.dataflow.tasks import TaskRecord, TaskTable
from astraflow_core.dataflow.trainers import TrainerRecord
from astraflow_core.dataflow.versions import VersionTable
from astraflow_core.errors import Refused
from astraflow_core.protocols.data_policy import Scale
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import Prompt
from astraflow_core.wire.messages import News, RevokedLease

log = logging.getLogger(__name__)

KEPT_SAMPLES = 8
PROMPTS = "prompts"
"""Place of the data policies that decide on admission; other places are the names of policies."""

CHECKPOINTS_OVERDUE = 3
"""Intervals between checkpoints that may pass without a release before no new task is handed out. The release
lags one checkpoint behind, so that the one before the newest can be gone on from too."""

RENEWALS_PER_LEASE = 3
FIGURES_EVERY_S = 2.0
"""Renewals carry the figures that people watch."""


class FlowState:
    """What the parts of the dataflow share. ``clock`` gives seconds that only grow. ``replaying``: the journal
    of a process of before is being read; nothing is decided then, only repeated."""

    def __init__(
        self,
        config: RunConfig,
        *,
        cursor: PromptCursor,
        admission: DataChain,
        chains: Mapping[str, DataChain],
        eval_sets: Mapping[str, PromptSource],
        rule: Scale,
        clock: Callable[[], float],
        signals: Signals | None = None,
        steps: StepLog | None = None,
    ) -> None:
        run = config.run
        self.config, self.clock = config, clock
        self.signals: Signals = signals or NoSignals()
        self.admission = Admission(cursor, admission)
        self.records = Records(steps, self.segments_needed)
        self.replaying = False
        self.started_at = clock()
        self.progress = Progress(clock())
        self.versions = VersionTable(config.policies)
        self.train = TaskTable(
            "train", run.lease_s, run.episode_deadline_s, run.task_attempts, admission.on_ended
        )
        self.eval = TaskTable("eval", run.lease_s, run.episode_deadline_s, run.task_attempts)
        self.fleet = Fleet(run.lease_s * 2 / RENEWALS_PER_LEASE, run.lease_s)
        self.balance = Balance(config.policies, rule)
        self.trainers = {policy: TrainerRecord(policy) for policy in config.policies}
        self.streams = {
            policy: PolicyStream(policy, _stream_settings(config, policy), chains[policy])
            for policy in config.policies
        }
        check_loans(self.streams)
        self.evaluations = Evaluations(
            eval_sets,
            self.eval,
            every=config.eval.every,
            samples=config.eval.samples,
            solved_at=config.eval.solved_at,
            policies=tuple(config.policies),
        )
        self.rejected: Counter[str] = Counter()
        self.failed_in_a_row = 0
        self.last_progress = clock()
        self.samples: deque[dict[str, Any]] = deque(maxlen=KEPT_SAMPLES)
        self.swaps: list[dict[str, Any]] = []
        self._told_held_back = False

    @property
    def renew_s(self) -> float:
        """How often a RaaS renews its leases at least."""
        return min(self.config.run.lease_s / RENEWALS_PER_LEASE, FIGURES_EVERY_S)

    def live_streams(self) -> list[PolicyStream]:
        """Streams that need rows and whose trainer is there."""
        now, silence = self.clock(), self.config.run.deadline_s
        return [
            stream
            for policy, stream in self.streams.items()
            if not stream.done and self.trainers[policy].alive(now, silence)
        ]

    def stream(self, policy: str) -> PolicyStream:
        """The stream of a policy that a trainer named; 400 if there is none."""
        if policy not in self.streams:
            known = ", ".join(sorted(self.streams))
            raise Refused(400, f"this run has no policy {policy!r}; its policies are {known}")
        return self.streams[policy]

    def segments_needed(self) -> set[int]:
        """Files of bodies of the journal that hold a row which may be served yet."""
        rows = {row.segment for stream in self.streams.values() for row in stream.rows_needed()}
        return rows | {part.segment for part in self.train.parts}

    def chains_by_place(self) -> dict[str, DataChain]:
        """The lists of data policies: that of ``"prompts"``, and that of each policy."""
        return {PROMPTS: self.admission.chain} | {p: s.chain for p, s in self.streams.items()}

    @property
    def held_back(self) -> str:
        """Why no new task is handed out although one is wanted: the disk is full, or the checkpoints of a
        trainer are overdue, so that ever more would have to be kept in memory. Empty if neither is so."""
        if self.records.trouble:
            return f"there is no room for the records of the run: {self.records.trouble}"
        every = self.config.checkpoint.every
        for stream in self.streams.values():
            since = stream.updates - stream.released
            if every and not stream.done and since > CHECKPOINTS_OVERDUE * every:
                return (
                    f"the trainer of {stream.policy!r} has saved no checkpoint for {since} updates; "
                    f"one was due every {every}"
                )
        return ""

    def look_for_room(self) -> None:
        """Write what the disk had no room for, and say when tasks are held back and when not any more."""
        self.records.write_held()
        reason = self.held_back
        if bool(reason) != self._told_held_back:
            if reason:
                log.warning("no new task is handed out: %s", reason)
            else:
                log.warning("tasks are handed out again: there is room")
                self.signals.work()
            self._told_held_back = bool(reason)

    def news(self, record: RaasRecord) -> News:
        """What a RaaS should know now; it counts as told."""
        newest, pins = self.versions.newer_than(record.seen), self.evaluations.pins(record.name)
        listed = {(message.policy, message.version) for message in newest}
        for policy, version in pins.items():
            pinned = self.versions.get(policy, version)
            if (
                pinned is not None
                and record.serving.get(policy) != version
                and (policy, version) not in listed
            ):
                newest.append(pinned)
        record.told_versions = dict(self.versions.newest)
        record.told_pins = dict(pins)
        revoked, record.revoked = list(record.revoked.values()), {}
        stop = self.progress.ending or self.may_leave(record)
        return News(announcements=newest, pins=dict(pins), revoked=revoked, stop=stop)

    def may_leave(self, record: RaasRecord) -> bool:
        """Whether a RaaS that is drained has nothing left to do."""
        held = self.train.held_by(record.name) or self.eval.held_by(record.name)
        return record.draining and not held and not self.evaluations.pins(record.name)

    def has_news(self, record: RaasRecord) -> bool:
        """Whether there is something that the RaaS was not told yet."""
        known = {
            policy: max(record.told_versions.get(policy, -1), record.seen.get(policy, -1))
            for policy in self.streams
        }
        return (
            self.progress.ending
            or self.may_leave(record)
            or bool(record.revoked)
            or record.told_pins != self.evaluations.pins(record.name)
            or bool(self.versions.newer_than(known))
        )

    # -- tasks -----------------------------------------------------------------------------------

    def table_of(self, task: str) -> TaskTable:
        """The table that a task's name belongs to; that of training if it is nobody's."""
        return self.eval if self.eval.owns(task) else self.train

    def admit(self, prompt: Prompt) -> TaskRecord:
        """A prompt becomes the next task of training."""
        self.admission.chain.on_admitted(prompt)
        return self.train.add(prompt, self.config.run.group_size)

    @property
    def expected(self) -> dict[str, float]:
        """Policy → sequences that a task is expected to bring."""
        return expected_sequences(self.streams.values(), self.config.run.group_size)

    def lease(self, table: TaskTable, raas: str, capacity: int) -> TaskRecord:
        """Lease the first task of a queue."""
        expected = self.expected if table is self.train else None
        task = table.lease(raas, capacity, self.clock(), expected)
        self.records.tell(Leased(task=task.id, raas=raas, capacity=capacity))
        return task

    def overdue(self, table: TaskTable, task: TaskRecord, reason: str) -> None:
        """A lease has reached its end."""
        self.records.tell(Overdue(task=task.id, reason=reason))
        self.give_back(table, task, reason, blame=True)

    def raas_gone(self, raas: str, reason: str) -> None:
        """A RaaS was silent for too long."""
        self.records.tell(RaasGone(raas=raas, reason=reason))
        self.fleet.give_up(raas, self.clock())
        self.give_back_all(raas, reason, blame=True)

    def give_back(self, table: TaskTable, task: TaskRecord, reason: str, *, blame: bool) -> None:
        """End a lease without a result; its RaaS is told to abort the task."""
        holder = self.fleet.get(task.lease.raas) if task.lease else None
        self.note_work(task)
        outcome = table.give_back(task, reason, blame=blame)
        if holder is not None and holder.health in ("alive", "suspect"):
            holder.revoked[task.id] = RevokedLease(task=task.id, reason=reason)
            self.signals.raas(holder.name)
        if outcome is not None and table is self.eval:
            self.evaluations.fail(task, reason)
        self.signals.work()

    def note_work(self, task: TaskRecord) -> None:
        """The lease of a task is about to end: its places were busy."""
        if task.lease is not None:
            held_s = self.clock() - task.lease.since
            self.balance.worked(task.lease.raas, held_s * task.missing)

    def give_back_all(self, raas: str, reason: str, *, blame: bool) -> None:
        """End all leases of a RaaS."""
        for table in (self.train, self.eval):
            for name in sorted(table.held_by(raas)):
                task = table.get(name)
                assert task is not None
                self.give_back(table, task, reason, blame=blame)

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
            self._move(RunState.FINISHED, "all updates are made")

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
        if not reachable and evaluations.is_hopeless(self.fleet):
            self.give_up_evaluation("its weights went with the trainer that published them")
            return True
        return evaluations.host(self.fleet, lambda raas: len(self.train.held_by(raas)))

    def give_up_evaluation(self, reason: str) -> None:
        """What is left of the running evaluation cannot be done."""
        self.records.tell(EvaluationGivenUp(reason=reason))
        self.evaluations.give_up(reason)

    def run_on(self) -> None:
        """Every policy has a version: rollouts may begin."""
        self._move(RunState.RUNNING, "rolling out and training")

    def run_again(self, reason: str) -> None:
        """There is something to do once more."""
        if self.progress.state is RunState.FINISHING:
            self._move(RunState.RUNNING, reason)

    def restore(self, journal: Journal, *, resumed: bool) -> None:
        """Go on from what a journal told, and tell it the rest. Whoever was there has their whole time to be
        heard of again; with ``resumed`` nobody of before is there any more."""
        now = self.clock()
        self.records.begin(journal)
        if resumed:
            self.records.tell(Resumed())
            self.resume()
        for table in (self.train, self.eval):
            table.extend_all(now)
        self.fleet.restore(now)
        for trainer in self.trainers.values():
            trainer.heard(now)
        self.started_at = self.last_progress = now

    def resume(self) -> None:
        """The run was started again after it had ended: tasks return, and all versions went with their
        publishers."""
        for table in (self.train, self.eval):
            for task in table.leased():
                self.give_back(table, task, "the run was started again", blame=False)
        for record in self.fleet.present():
            self.fleet.leave(record.name, self.clock())
        for policy, trainer in self.trainers.items():
            trainer.registered = trainer.failed = trainer.told_end = False
            self.versions.withdraw(policy)
        self.failed_in_a_row = 0
        self.progress.reopen("the run was started again", self.clock())

    def finish_if_done(self) -> None:
        """Go to the last evaluation once every policy has made its updates."""
        all_there = self.versions.available(self.versions.newest)
        running = self.progress.state is RunState.RUNNING
        if running and all_there and all(s.done for s in self.streams.values()):
            self._move(RunState.FINISHING, "all updates are made; evaluating the last versions")
            for task in self.train.leased():
                self.give_back(self.train, task, "all updates are made", blame=False)
            self.evaluations.require(self.versions.newest, self.clock())
            self.advance_evaluations()

    def stop(self, reason: str) -> None:
        """End the run cleanly: trainers finish their step, no batch is served any more."""
        if not self.replaying and self._move(RunState.STOPPING, reason):
            self._end_leases(reason)
            self.settle()

    def fail(self, reason: str, user: bool = False) -> None:
        """End the run as failed, by a mistake of the ``user`` or not; the first reason stays."""
        if not self.replaying and self._move(RunState.FAILED, reason):
            self.progress.users_mistake = user
            self._end_leases(reason)

    def settle(self) -> None:
        """Note that a stopping run has stopped once every trainer knows."""
        told = all(t.told_end or t.failed or not t.registered for t in self.trainers.values())
        if self.progress.state is RunState.STOPPING and told:
            self._move(RunState.STOPPED, self.progress.reason)

    @property
    def all_left(self) -> bool:
        """Whether nobody will call any more: trainers have their last checkpoint, RaaS said goodbye."""
        trainers = all(
            trainer.failed
            or not trainer.registered
            or self.streams[policy].released >= self.streams[policy].updates
            for policy, trainer in self.trainers.items()
        )
        told = all(t.told_end or t.failed or not t.registered for t in self.trainers.values())
        return trainers and told and not self.fleet.present()

    def close(self) -> None:
        """Close the records of the run."""
        self.records.close()

    def _end_leases(self, reason: str) -> None:
        for table in (self.train, self.eval):
            for task in table.leased():
                self.give_back(table, task, f"the run ends: {reason}", blame=False)

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


def _stream_settings(config: RunConfig, policy: str) -> StreamSettings:
    table, temperature = config.policies[policy], config.sampling.temperature
    return StreamSettings(
        batch_sequences=table.batch_sequences,
        publish_every=table.publish_every,
        steps=config.run.steps,
        max_staleness=config.run.max_staleness,
        temperature=temperature if temperature > 0 else 1.0,
        keeps_batches=config.checkpoint.every > 0,
    )
