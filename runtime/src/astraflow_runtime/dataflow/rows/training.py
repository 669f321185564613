"""The trainers' side of the dataflow: versions in, batches out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus

from msgspec.structs import replace

from astraflow_core.errors import Refused, UserError
from astraflow_runtime.dataflow.fleet.balance import StepBalance
from astraflow_runtime.dataflow.fleet.recovering import note_recovery
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Released,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.journal.steplog import finite
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.rows.rows import leave_to_journal
from astraflow_runtime.dataflow.rows.stream import PolicyStream, ServedBatch
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.batches import encode_no_batch
from astraflow_wire.limits import sendable
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    BatchAcknowledged,
    NextBatch,
    RegisterTrainer,
    ReleaseBatches,
    TrainerFailed,
    TrainerRegistered,
    VersionAnnounced,
)

log = logging.getLogger("astraflow.dataflow")


class Training:
    """Registers trainers, records versions and serves batches."""

    def __init__(self, state: FlowState) -> None:
        self._state = state

    def enter(self, message: RegisterTrainer) -> TrainerRegistered:
        """Register a trainer that calls. If the weights that it has recovered have the update of the
        unacknowledged batch, that counts as acknowledged: it must not be made twice.
        """
        stream, made = self._state.stream(message.policy), self._made(message)
        if stream.outstanding is not None and made == stream.updates + 1:
            done = AcknowledgeBatch(
                policy=message.policy,
                batch=stream.outstanding.id,
                version=message.recovered,
                metrics={},
            )
            self.acknowledge(done)
        return self.register(message)

    def _made(self, message: RegisterTrainer) -> int | None:
        """The updates in the weights that a trainer has recovered; ``None`` if it has not."""
        if message.recovered < 0:
            return None
        made = self._state.versions.made(message.policy, message.recovered)
        if made is None:
            raise Refused(
                409,
                f"the updates of version {message.recovered} of {message.policy!r} are not known; it "
                "was not announced in this run, or long ago",
            )
        return made

    def register(self, message: RegisterTrainer) -> TrainerRegistered:
        """Register a trainer, perhaps after a restart: an unacknowledged batch will be served to it
        again.
        """
        state = self._state
        stream, trainer = state.stream(message.policy), state.trainers[message.policy]
        before, made = stream.updates, self._made(message)
        if made is None:
            updates = stream.newest_state(message.updates)
        else:
            updates = stream.recovered_state(made)
        state.records.append(TrainerRegistration(message=message))
        if made is not None:
            note_recovery(state, message, made=made, before=before, updates=updates)
        if stream.rewind(updates):
            state.reopen_run(f"the trainer of {message.policy!r} repeats updates")
            state.signals.trainer(message.policy)
        stream.release(updates)
        if trainer.registered:
            state.versions.withdraw(message.policy)
            state.advance_evaluations()
        stream.trainer_is_new = True
        state.signals.new_trainer(message.policy)
        trainer.registered = True
        trainer.failed = trainer.saw_end = trainer.left = False
        trainer.pid, trainer.host = message.pid, message.host
        trainer.incarnation, trainer.registered_at = trainer.incarnation + 1, state.clock()
        state.balance.trainer_registered(message.policy)
        trainer.heard(state.clock())
        if state.recoveries.pop(message.policy, None) is not None:
            state.signals.every_raas()
        return TrainerRegistered(
            run=state.config.run.name,
            highest_version=state.versions.newest[message.policy],
            updates=stream.updates,
            incarnation=trainer.incarnation,
        )

    def announce(self, message: AnnouncementMessage) -> VersionAnnounced:
        """Record an announced version, and notify every RaaS."""
        state = self._state
        stream = state.stream(message.policy)
        state.trainers[message.policy].heard(state.clock())
        if state.versions.announce(message, stream.updates_of_next_version):
            state.last_progress = state.clock()
            state.records.append(Announced(message=message))
            for chain in (state.admission.chain, stream.chain):
                chain.on_version(message.policy, message.version)
            if state.versions.complete and not state.progress.over:
                state.start_rollouts()
                state.evaluations.versions_announced(state.versions.newest, state.clock())
            state.signals.every_raas()
            state.signals.work()
            state.finish_if_done()
            state.advance_evaluations()
        return VersionAnnounced(retain=self._retained(message.policy))

    def next_batch(self, message: NextBatch) -> list[bytes | memoryview] | None:
        """The batch that updates ``message.version`` as the parts of a frame, a message that there
        will be none, or ``None`` while there is no reply.
        """
        state = self._state
        stream, trainer = state.stream(message.policy), state.trainers[message.policy]
        if state.progress.ending and not self._repeats(stream):
            trainer.saw_end = True
            state.settle()
            best = state.evaluations.best_available(state.versions.available)
            best_version = best[message.policy] if best is not None else -1
            return [encode_no_batch(True, state.progress.reason, best_version)]
        newest = state.versions.newest[message.policy]
        batch = stream.outstanding
        if message.version != newest and (batch is None or batch.asked != message.version):
            raise Refused(
                409,
                f"a batch for version {message.version} of {message.policy!r} was requested; the "
                f"newest announced version is {newest}",
            )
        batch = self.serve(message)
        if batch is None:
            return None
        try:
            return stream.encode(batch, message.named_rewards)
        except UserError as error:  # the trainer reports it, and that ends the run
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error

    def _repeats(self, stream: PolicyStream) -> bool:
        """Whether the run has finished but a trainer that died before it saved its last state
        repeats the updates since its last checkpoint.
        """
        return self._state.progress.state is RunState.FINISHED and not stream.done

    def serve(self, message: NextBatch) -> ServedBatch | None:
        """The batch that updates ``message.version`` if there is one; it then counts as served."""
        state, stream = self._state, self._state.streams[message.policy]
        before = stream.outstanding
        batch = stream.cut(message.version, self._version_of_source(stream))
        if batch is not None and before is None and not batch.again:
            state.last_progress = state.clock()
        dropped = stream.dropped
        if batch is not None:
            arrivals = [row.item.arrival for row in batch.rows]
            state.records.append(
                BatchRequested(
                    message=message,
                    batch=batch.id,
                    arrivals=arrivals,
                    dropped=dropped,
                    source=batch.sourced.source,
                    borrowed=batch.sourced.arrivals,
                )
            )
        elif dropped or stream.chain.chooses:
            state.records.append(BatchRequested(message=message, dropped=dropped))
        if batch is not None or dropped or stream.starved:
            state.signals.work()
        return batch

    def _version_of_source(self, stream: PolicyStream) -> int:
        """The newest version of the policy of its row source; -1 without a source."""
        return self._state.versions.newest.get(stream.row_source.policy, -1)

    def no_batch_yet(self, policy: str) -> bytes:
        """The reply to a request for a batch that timed out."""
        return encode_no_batch(False, self.lacking(policy))

    def lacking(self, policy: str) -> str:
        """Why there is no batch for a policy now, as text."""
        state, stream = self._state, self._state.streams[policy]
        if stream.done:
            return "it has completed all its updates; other trainers or the last evaluation are still running"
        count = stream.settings.batch_sequences
        source = stream.row_source
        have, need = len(stream.buffer), count - source.available
        if source.exclusive:
            there = f"{source.available} of {count} sequences of {source.policy!r} are available"
            return f"{there}; {state.train.running} tasks are running"
        if have >= need and stream.chain.chooses:
            who = f"data policy {stream.chain.draws!r}" if stream.chain.draws else "a data policy"
            return f"{who} waits for more than {have} rows"
        text = f"{have} of {need} sequences are available; {state.train.running} tasks are running"
        return f"{text}, {sum(stream.reasons.values())} groups were rejected"

    def acknowledge(self, message: AcknowledgeBatch) -> BatchAcknowledged:
        """Record that an update is done."""
        state = self._state
        stream, trainer = state.stream(message.policy), state.trainers[message.policy]
        newest = state.versions.newest[message.policy]
        trainer.heard(state.clock())
        if message.version > newest:
            raise Refused(
                409,
                f"batch {message.batch!r} was acknowledged with version {message.version}; "
                f"the newest announced version of {message.policy!r} is {newest}",
            )
        told = stream.episode_means.complaint
        batch = stream.acknowledge(message.batch)
        if batch is not None:
            state.last_progress = trainer.last_step = state.clock()
            trainer.steps_done += 1
            # Recorded in the entry too, since a replay has no measurements of RaaS.
            probed = state.fleet.probed(message.policy)
            metrics = sendable({**probed, **message.metrics, **probed})
            message = replace(message, metrics=metrics)
            trainer.metrics = dict(message.metrics)
            idle = state.fleet.idle(state.clock())
            state.records.append(
                Acknowledged(
                    message=message,
                    tokens_generated=state.fleet.tokens_generated,
                    generated=state.fleet.counters(),
                    first_asked=trainer.first_asked,
                    waited_s=trainer.waited_s,
                    idle=idle,
                )
            )
            if (complaint := stream.episode_means.complaint) != told and not state.replaying:
                log.warning("%s", complaint)
            if (reader := state.records.reader) is not None:
                leave_to_journal(batch.all_rows, reader)
            self._log_step(stream, batch, message)
            self._update_balance(stream, batch, message, idle)
            state.signals.work()
            state.finish_if_done()
        stop = state.progress.ending and state.progress.state is not RunState.FINISHED
        if stop:
            trainer.saw_end = True
            state.settle()
        return BatchAcknowledged(retain=self._retained(message.policy), stop=stop)

    def _update_balance(
        self,
        stream: PolicyStream,
        batch: ServedBatch,
        message: AcknowledgeBatch,
        idle: Mapping[str, float],
    ) -> None:
        """Pass a step to the balance monitor, and its report to the subscribers."""
        state = self._state
        step = StepBalance(
            waited_s=state.trainers[stream.policy].waited_s,
            consumed=stream.tokens_consumed,
            stale_rows=stream.rows.stale,
            version=message.version,
            again=batch.again,
            done=stream.done,
        )
        size = len(state.fleet.pool())
        report = state.balance.step_acknowledged(stream.policy, step, state.clock(), size, idle)
        if report is not None:
            state.records.log({"balance": report})
            state.signals.report()

    def release(self, message: ReleaseBatches) -> None:
        """A checkpoint covers the updates up to ``message.updates``: their batches are not needed
        again.
        """
        state, stream = self._state, self._state.stream(message.policy)
        if message.updates > stream.updates:
            raise Refused(
                409,
                f"{message.updates} updates are released, but only {stream.updates} are acknowledged",
            )
        stream.release(message.updates)
        trainer = state.trainers[message.policy]
        trainer.left = trainer.left or message.last
        trainer.heard(state.clock())
        state.records.append(Released(message=message))
        state.signals.state()

    def failed(self, message: TrainerFailed) -> None:
        """A trainer failed for good, and the run with it."""
        state = self._state
        state.stream(message.policy)
        state.trainers[message.policy].failed = True
        state.fail(f"the trainer of {message.policy!r} failed: {message.error}", message.user)
        state.signals.state()

    def _retained(self, policy: str) -> list[int]:
        state = self._state
        needed = state.evaluations.needed_versions(policy, state.versions.available)
        needed += [r.serving[policy] for r in state.fleet.present() if policy in r.serving]
        return state.versions.retain(policy, needed)

    def _log_step(
        self, stream: PolicyStream, batch: ServedBatch, message: AcknowledgeBatch
    ) -> None:
        staleness = Counter(batch.ages)
        borrowed = Counter(batch.sourced.ages)
        self._state.records.log(
            {
                "policy": stream.policy,
                "step": stream.updates,
                "again": batch.again,
                "version": message.version,
                "reward": stream.statistics.reward,
                "trained_reward": stream.trained_reward,
                **asdict(stream.statistics.last),
                "episodes": stream.episode_means.episodes,
                "episode_metrics": stream.episode_means.last,
                "buffered": len(stream.buffer),
                "stale": stream.rows.stale,
                "staleness": {str(lag): rows for lag, rows in sorted(staleness.items())},
                "staleness_mean": sum(staleness.elements()) / len(batch.all_rows),
                "staleness_max": max(staleness),
                "borrowed": len(batch.sourced.rows),
                "borrowed_age": {str(age): rows for age, rows in sorted(borrowed.items())},
                "tokens_trained": stream.tokens_trained,
                "tokens_generated": self._state.fleet.tokens_generated,
                "refresh": self._state.fleet.refresh(stream.policy),
                "drafts": self._state.fleet.drafts(stream.policy),
                "metrics": message.metrics,
                "data_metrics": finite(stream.chain.metrics()),
                "admission_metrics": finite(self._state.admission.chain.metrics()),
            }
        )
