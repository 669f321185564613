"""All state of a run in the dataflow, and the few acts that concern all of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from astraflow_core.config.models import RunConfig
from astraflow_core.dataflow.chains import DataChain
from astraflow_core.dataflow.cursor import PromptCursor
from astraflow_core.dataflow.evaluation import Evaluations
from astraflow_core.dataflow.fleet import Fleet, RaasRecord
from astraflow_core.dataflow.journal import Ended, Entry, Journal
from astraflow_core.dataflow.progress import Progress, RunState
from astraflow_core.dataflow.signals import NoSignals, Signals
from astraflow_core.dataflow.steplog import StepLog
from astraflow_core.dataflow.stream import PolicyStream, StreamSettings
from astraflow_core.dataflow.tasks import TaskRecord, TaskTable
from astraflow_core.dataflow.trainers import TrainerRecord
from astraflow_core.dataflow.versions import VersionTable
from astraflow_core.errors import Refused
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.wire.messages import News, RevokedLease

KEPT_SAMPLES = 8
RENEWALS_PER_LEASE = 3
FIGURES_EVERY_S = 2.0
"""Renewals carry the figures that people watch."""


class FlowState:
    """What the parts of the dataflow share. ``clock`` gives seconds that only grow."""

    def __init__(
        self,
        config: RunConfig,
        *,
        cursor: PromptCursor,
        admission: DataChain,
        chains: Mapping[str, DataChain],
        eval_sets: Mapping[str, PromptSource],
        clock: Callable[[], float],
        signals: Signals | None = None,
        journal: Journal | None = None,
        log: StepLog | None = None,
    ) -> None:
        run = config.run
        self.config, self.clock = config, clock
        self.signals: Signals = signals or NoSignals()
        self.cursor, self.admission = cursor, admission
        self._journal, self._log = journal, log
        self.progress = Progress(clock())
        self.versions = VersionTable(config.policies)
        self.train = TaskTable("train", run.lease_s, run.episode_deadline_s, run.task_attempts)
        self.eval = TaskTable("eval", run.lease_s, run.episode_deadline_s, run.task_attempts)
        self.fleet = Fleet(run.lease_s * 2 / RENEWALS_PER_LEASE, run.lease_s)
        self.trainers = {policy: TrainerRecord(policy) for policy in config.policies}
        self.streams = {
            policy: PolicyStream(policy, _stream_settings(config, policy), chains[policy])
            for policy in config.policies
        }
        self.evaluations = Evaluations(
            eval_sets,
            self.eval,
            every=config.eval.every,
            samples=config.eval.samples,
            max_prompts=config.eval.max_prompts,
            solved_at=config.eval.solved_at,
            policies=tuple(config.policies),
        )
        self.rejected: Counter[str] = Counter()
        self.failed_in_a_row = 0
        self.forced = 0
        self.last_progress = clock()
        self.samples: deque[dict[str, Any]] = deque(maxlen=KEPT_SAMPLES)

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

    def journal(self, entry: Entry) -> None:
        """Log an entry if the run keeps a journal."""
        if self._journal is not None:
            self._journal.write(entry)

    def journal_body(self, body: bytes | memoryview) -> None:
        """Log a push body if the run keeps a journal."""
        if self._journal is not None:
            self._journal.body(body)

    def log(self, line: dict[str, Any]) -> None:
        """Write a line of ``metrics.jsonl``."""
        if self._log is not None:
            self._log.write(line)

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
        return News(
            announcements=newest, pins=dict(pins), revoked=revoked, stop=self.progress.ending
        )

    def has_news(self, record: RaasRecord) -> bool:
        """Whether there is something that the RaaS was not told yet."""
        return (
            self.progress.ending
            or bool(record.revoked)
            or record.told_pins != self.evaluations.pins(record.name)
            or any(
                version > max(record.told_versions.get(policy, -1), record.seen.get(policy, -1))
                for policy, version in self.versions.newest.items()
            )
        )

    def give_back(self, table: TaskTable, task: TaskRecord, reason: str, *, blame: bool) -> None:
        """End a lease without a result; its RaaS is told to abort the task."""
        holder = self.fleet.get(task.lease.raas) if task.lease else None
        outcome = table.give_back(task, reason, blame=blame)
        if holder is not None and holder.health in ("alive", "suspect"):
            holder.revoked[task.id] = RevokedLease(task=task.id, reason=reason)
            self.signals.raas(holder.name)
        if outcome is not None:
            self.gave_up(table, task, outcome, reason)
        self.signals.work()

    def gave_up(self, table: TaskTable, task: TaskRecord, outcome: str, reason: str) -> None:
        """A task ended without a result."""
        if table is self.eval:
            self.evaluations.fail(task, reason)
        else:
            self.journal(Ended(task=task.id, outcome=outcome, reason=reason))

    def give_back_all(self, raas: str, reason: str, *, blame: bool) -> None:
        """End all leases of a RaaS."""
        for table in (self.train, self.eval):
            for name in sorted(table.held_by(raas)):
                task = table.get(name)
                assert task is not None
                self.give_back(table, task, reason, blame=blame)

    def advance_evaluations(self) -> None:
        """Conclude, start and host evaluations, and finish the run after the last one."""
        now = self.clock()
        changed = False
        while (entry := self.evaluations.conclude(now)) is not None:
            self.log({"eval": entry})
            changed = True
            self._start_next(now)
        changed |= self._start_next(now)
        if changed:
            self.last_progress = now
            self.signals.every_raas()
            self.signals.work()
        if self.progress.state is RunState.FINISHING and self.evaluations.idle:
            self._move(RunState.FINISHED, "all updates are made")

    def _start_next(self, now: float) -> bool:
        if self.evaluations.idle:
            return False
        load = {r.name: len(self.train.held_by(r.name)) for r in self.fleet.live()}
        waiting = self.evaluations.all_waiting
        available = not waiting or self.versions.available(waiting[0].versions)
        return self.evaluations.advance(self.fleet, load, now, available)

    def run_on(self) -> None:
        """Every policy has a version: rollouts may begin."""
        self._move(RunState.RUNNING, "rolling out and training")

    def repeat(self, policy: str) -> None:
        """A trainer that came back makes updates again."""
        if self.progress.state is RunState.FINISHING:
            self._move(RunState.RUNNING, f"the trainer of {policy!r} repeats updates")
        self.signals.trainer(policy)

    def finish_if_done(self) -> None:
        """Go to the last evaluation once every policy has made its updates."""
        if self.progress.state is RunState.RUNNING and all(s.done for s in self.streams.values()):
            self._move(RunState.FINISHING, "all updates are made; evaluating the last versions")
            for task in self.train.leased():
                self.give_back(self.train, task, "all updates are made", blame=False)
            self.evaluations.require(self.versions.newest, self.clock())
            self.advance_evaluations()

    def stop(self, reason: str) -> None:
        """End the run cleanly: trainers finish their step, no batch is served any more."""
        if self._move(RunState.STOPPING, reason):
            self._end_leases(reason)
            self.settle()

    def fail(self, reason: str) -> None:
        """End the run as failed; the first reason stays."""
        if self._move(RunState.FAILED, reason):
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
        """Close the journal and the log."""
        if self._journal is not None:
            self._journal.close()
        if self._log is not None:
            self._log.close()

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
