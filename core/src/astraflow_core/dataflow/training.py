"""The trainers' side of the dataflow: versions in, batches out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from astraflow_core.dataflow.balance import Step
from astraflow_core.dataflow.entries import (
    Acknowledged,
    Announced,
    Asked,
    Released,
    TrainerCame,
)
from astraflow_core.dataflow.progress import RunState
from astraflow_core.dataflow.state import FlowState
from astraflow_core.dataflow.stream import PolicyStream, ServedBatch
from astraflow_core.errors import Refused
from astraflow_core.wire.batches import encode_no_batch
from astraflow_core.wire.messages import (
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


class Training:
    """Registers trainers, records versions and serves batches."""

    def __init__(self, state: FlowState) -> None:
        self._state = state

    def register(self, message: RegisterTrainer) -> TrainerRegistered:
        """A trainer arrives, or comes back: an unacknowledged batch will be served to it again."""
        state = self._state
        stream, trainer = state.stream(message.policy), state.trainers[message.policy]
        updates = stream.newest_state(message.updates)
        state.records.tell(TrainerCame(message=message))
        if stream.rewind(updates):
            state.run_again(f"the trainer of {message.policy!r} repeats updates")
            state.signals.trainer(message.policy)
        stream.release(updates)
        if trainer.registered:
            state.versions.withdraw(message.policy)
            state.advance_evaluations()
        stream.trainer_is_new = True
        state.signals.new_trainer(message.policy)
        trainer.registered, trainer.failed, trainer.told_end = True, False, False
        trainer.pid, trainer.host = message.pid, message.host
        state.balance.came(message.policy)
        trainer.heard(state.clock())
        return TrainerRegistered(
            run=state.config.run.name,
            highest_version=state.versions.newest[message.policy],
            updates=stream.updates,
        )

    def announce(self, message: AnnouncementMessage) -> VersionAnnounced:
        """A version is out. Everyone hears of it at once."""
        state = self._state
        state.stream(message.policy)
        state.trainers[message.policy].heard(state.clock())
        if state.versions.announce(message):
            state.last_progress = state.clock()
            state.records.tell(Announced(message=message))
            for chain in (state.admission.chain, state.streams[message.policy].chain):
                chain.on_version(message.policy, message.version)
            if state.versions.complete:
                state.run_on()
                state.evaluations.versions_announced(state.versions.newest, state.clock())
            state.signals.every_raas()
            state.signals.work()
            state.finish_if_done()
            state.advance_evaluations()
        return VersionAnnounced(retain=self._retained(message.policy))

    def next_batch(self, message: NextBatch) -> list[bytes | memoryview] | None:
        """The batch that updates ``message.version`` as the parts of a frame, the word that there will be
        none, or ``None`` while there is nothing to say."""
        state = self._state
        stream, trainer = state.stream(message.policy), state.trainers[message.policy]
        if not trainer.registered:
            raise Refused(409, f"the trainer of {message.policy!r} is not registered")
        if state.progress.ending:
            trainer.told_end = True
            state.settle()
            best = state.evaluations.best_there(state.versions.available)
            best_version = best[message.policy] if best is not None else -1
            return [encode_no_batch(True, state.progress.reason, best_version)]
        newest = state.versions.newest[message.policy]
        batch = stream.outstanding
        if message.version != newest and (batch is None or batch.asked != message.version):
            raise Refused(
                409,
                f"a batch for version {message.version} of {message.policy!r} was asked for; "
                f"the newest announced is {newest}",
            )
        batch = self.serve(message)
        return stream.encode(batch) if batch is not None else None

    def serve(self, message: NextBatch) -> ServedBatch | None:
        """The batch that updates ``message.version`` if there is one, now in the hands of its trainer."""
        state, stream = self._state, self._state.streams[message.policy]
        before = stream.outstanding
        batch = stream.cut(message.version, self._version_of_source(stream))
        if batch is not None and before is None and not batch.again:
            state.last_progress = state.clock()
        dropped = stream.dropped
        if batch is not None:
            arrivals = [row.item.arrival for row in batch.rows]
            state.records.tell(
                Asked(
                    message=message,
                    batch=batch.id,
                    arrivals=arrivals,
                    dropped=dropped,
                    source=batch.source,
                    borrowed=[row.item.arrival for row in batch.borrowed],
                )
            )
        elif dropped or stream.chain.chooses:
            state.records.tell(Asked(message=message, dropped=dropped))
        if batch is not None or dropped or stream.starved:
            state.signals.work()
        return batch

    def _version_of_source(self, stream: PolicyStream) -> int:
        """The newest version of the policy that rows are borrowed from, which its trainer updates; -1 if none are."""
        source = stream.chain.source
        return self._state.versions.newest[source] if source else -1

    def no_batch_yet(self, policy: str) -> bytes:
        """What a trainer is told when its request has waited long enough."""
        return encode_no_batch(False, self.lacking(policy))

    def lacking(self, policy: str) -> str:
        """Why there is no batch for a policy now."""
        state, stream = self._state, self._state.streams[policy]
        if stream.done:
            return "all its updates are made; others train, or the last evaluation runs"
        count = stream.settings.batch_sequences
        lent = min(len(stream.shelf), stream.chain.most_borrowed(count))
        have, need = len(stream.buffer), count - lent
        if source := stream.shares:
            return f"{lent} of {count} sequences of {source!r} are there; {state.train.running} tasks run"
        if have >= need and stream.chain.chooses:
            who = f"data policy {stream.chain.draws!r}" if stream.chain.draws else "a data policy"
            return f"{who} waits for more than {have} rows"
        text = f"{have} of {need} sequences are there; {state.train.running} tasks run"
        return f"{text}, {sum(stream.reasons.values())} groups were rejected"

    def acknowledge(self, message: AcknowledgeBatch) -> BatchAcknowledged:
        """An update is done."""
        state = self._state
        stream, trainer = state.stream(message.policy), state.trainers[message.policy]
        newest = state.versions.newest[message.policy]
        trainer.heard(state.clock())
        if message.version > newest:
            raise Refused(
                409,
                f"batch {message.batch!r} is said to be published as version {message.version}; "
                f"the newest announced of {message.policy!r} is {newest}",
            )
        batch = stream.acknowledge(message.batch)
        if batch is not None:
            state.last_progress = trainer.last_step = state.clock()
            trainer.steps_done += 1
            # In the entry too: a dataflow that reads its journal knows of no RaaS what it measured.
            probed = state.fleet.probed(message.policy)
            message = replace(message, metrics={**message.metrics, **probed})
            trainer.metrics = dict(message.metrics)
            idle = state.fleet.idle(state.clock())
            state.records.tell(
                Acknowledged(
                    message=message,
                    tokens_generated=state.fleet.tokens_generated,
                    generated=state.fleet.counters(),
                    first_asked=trainer.first_asked,
                    waited_s=trainer.waited_s,
                    idle=idle,
                )
            )
            self._log_step(stream, batch, message)
            self._weigh(stream, batch, message, idle)
            state.signals.work()
            state.finish_if_done()
        stop = state.progress.ending and state.progress.state is not RunState.FINISHED
        if stop:
            trainer.told_end = True
            state.settle()
        return BatchAcknowledged(retain=self._retained(message.policy), stop=stop)

    def _weigh(
        self,
        stream: PolicyStream,
        batch: ServedBatch,
        message: AcknowledgeBatch,
        idle: Mapping[str, float],
    ) -> None:
        """Tell the balance of a step, and everyone of its report."""
        state = self._state
        step = Step(
            waited_s=state.trainers[stream.policy].waited_s,
            consumed=stream.tokens_consumed,
            stale_rows=stream.rows.stale,
            version=message.version,
            again=batch.again,
            done=stream.done,
        )
        size = len(state.fleet.pool())
        report = state.balance.stepped(stream.policy, step, state.clock(), size, idle)
        if report is not None:
            state.records.log({"balance": report})
            state.signals.report()

    def release(self, message: ReleaseBatches) -> None:
        """A checkpoint holds the updates up to ``message.updates``; their batches are not needed again."""
        state, stream = self._state, self._state.stream(message.policy)
        if message.updates > stream.updates:
            raise Refused(
                409, f"{message.updates} updates are released; {stream.updates} are acknowledged"
            )
        stream.release(message.updates)
        state.trainers[message.policy].heard(state.clock())
        state.records.tell(Released(message=message))
        state.signals.state()

    def failed(self, message: TrainerFailed) -> None:
        """A trainer cannot go on, and so the run cannot."""
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
        borrowed = Counter(batch.ages[len(batch.rows) :])
        self._state.records.log(
            {
                "policy": stream.policy,
                "step": stream.updates,
                "again": batch.again,
                "version": message.version,
                "reward": stream.step_reward,
                "trained_reward": stream.trained_reward,
                "buffered": len(stream.buffer),
                "stale": stream.rows.stale,
                "staleness": {str(lag): rows for lag, rows in sorted(staleness.items())},
                "staleness_mean": sum(staleness.elements()) / len(batch.all_rows),
                "staleness_max": max(staleness),
                "borrowed": len(batch.borrowed),
                "borrowed_age": {str(age): rows for age, rows in sorted(borrowed.items())},
                "tokens_trained": stream.tokens_trained,
                "tokens_generated": self._state.fleet.tokens_generated,
                "refresh": self._state.fleet.refresh(stream.policy),
                "metrics": message.metrics,
            }
        )
