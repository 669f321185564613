"""The data stream of one policy: accepted rows in, batches out, and the state of every row."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.policies.decisions import Decision, PromptRefusal
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline
from astraflow_runtime.dataflow.row_source import NO_ROWS, RowSource, SourcedRows
from astraflow_runtime.dataflow.rows.buffer import RowBuffer
from astraflow_runtime.dataflow.rows.episode_means import EpisodeMeans
from astraflow_runtime.dataflow.rows.group_watch import GroupWatch
from astraflow_runtime.dataflow.rows.packing import pack
from astraflow_runtime.dataflow.rows.rows import PolicyShare, Row, rows_of
from astraflow_runtime.dataflow.rows.settings import StreamSettings
from astraflow_runtime.dataflow.rows.staleness import StalenessBound
from astraflow_runtime.dataflow.rows.step_metrics import StepStatistics
from astraflow_wire.groups import ReceivedGroup

EXPECTATION_WEIGHT = 0.1


@dataclass(slots=True)
class RowCounts:
    """Rows by state: accepted = trained + being trained + buffered + stale + evicted.
    ``replayed`` counts rows served again, ``untrained`` those of accepted groups with nothing to train."""

    accepted: int = 0
    trained: int = 0
    stale: int = 0
    evicted: int = 0
    replayed: int = 0
    untrained: int = 0


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A batch that was served and is not acknowledged yet. ``first_served``: its rows that were
    never served before. ``version``: the version that it was to update when it was cut; ``asked``:
    the version of the request, which differs if the batch is served ``again`` to a restarted
    trainer. ``sourced``: rows that another policy sampled, in addition to its own ``rows``.
    """

    id: str
    version: int
    rows: tuple[Row, ...]
    first_served: int
    asked: int
    again: bool = False
    sourced: SourcedRows = NO_ROWS

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Its own rows, then those of its source."""
        return self.rows + self.sourced.rows

    @property
    def ages(self) -> list[int]:
        """The age of each of :attr:`all_rows`, in versions of the policy that sampled it."""
        own = [self.version - row.min_version for row in self.rows]
        return own + self.sourced.ages


class PolicyStream:
    """Buffer, staleness bound and batches of ``policy``."""

    def __init__(self, policy: str, settings: StreamSettings, chain: PolicyPipeline) -> None:
        self.policy, self.settings, self.chain = policy, settings, chain
        self.buffer = RowBuffer(chain.key, keep_served=chain.wants_kept)
        self.staleness = StalenessBound(settings.max_staleness)
        self.rows = RowCounts()
        self.row_source = RowSource(chain, settings.batch_sequences, settings.max_staleness)
        self.reasons: Counter[str] = Counter()
        self.watch = GroupWatch(policy)
        self.groups_accepted = 0
        self.updates = 0
        self.released = 0
        self.outstanding: ServedBatch | None = None
        self._unreleased: deque[ServedBatch] = deque()
        self._to_repeat: deque[ServedBatch] = deque()
        self.last_acknowledged = ""
        self.trainer_is_new = False
        self.starved = False
        self.dropped: list[int] = []
        self.per_trajectory = 1.0
        self._observed = False
        self._arrivals = 0
        self.statistics = StepStatistics(settings.pass_threshold)
        self.episode_means = EpisodeMeans(policy)
        self.trained_reward: float | None = None
        self.tokens_trained = 0
        self.tokens_consumed = 0

    @property
    def batch_sequences(self) -> int:
        """Sequences of a batch."""
        return self.settings.batch_sequences

    @property
    def done(self) -> bool:
        """Whether the policy has completed all its updates."""
        return self.updates >= self.settings.steps

    @property
    def updates_of_next_version(self) -> int:
        """The updates that a version announced now has: that of the batch under way too, unless its
        trainer has just started.
        """
        return self.updates + (self.outstanding is not None and not self.trainer_is_new)

    @property
    def being_trained(self) -> int:
        """Rows in the outstanding batch that were served for the first time, and those of batches
        that a restarted trainer has still to repeat.
        """
        now = self.outstanding.first_served if self.outstanding else 0
        if not self._to_repeat:
            return now
        return now + sum(batch.first_served for batch in self._to_repeat)

    @property
    def source_counts(self) -> dict[str, int]:
        """Rows that another policy sampled by state, apart from its own."""
        return self.row_source.by_state(self._sourced_in_training)

    @property
    def _sourced_in_training(self) -> int:
        batches = (*self._to_repeat, *([self.outstanding] if self.outstanding else []))
        return sum(len(batch.sourced.rows) for batch in batches)

    @property
    def pending(self) -> int:
        """Sequences for its batches that are buffered, or served and not acknowledged."""
        if self.row_source.exclusive:
            return len(self.row_source.waiting) + self._sourced_in_training
        return len(self.buffer) + self.being_trained

    @property
    def starves(self) -> bool:
        """Whether its trainer has no batch and none is ready."""
        there = self.row_source.waiting if self.row_source.exclusive else self.buffer
        return self.outstanding is None and (self.starved or len(there) < self.batch_sequences)

    @property
    def shares(self) -> str:
        """The policy that samples all rows of its batches, if that is another one; else empty."""
        return self.row_source.policy if self.row_source.exclusive else ""

    @property
    def limit(self) -> int:
        """The most sequences that may be in flight for its batches: its own, or those of the policy
        whose stream it :attr:`shares`. Rows of its row source reduce the number of its own rows,
        unless the source had too few for the last batch.
        """
        count, sourced = self.settings.batch_sequences, self.row_source.most
        own = count if self.row_source.underfilled or sourced == count else count - sourced
        return (self.settings.max_staleness + 1) * own

    @property
    def may_cut(self) -> bool:
        """Whether a request for a batch could succeed now."""
        own = self.settings.batch_sequences - self.row_source.available
        return self.chain.draws is not None or len(self.buffer) >= own

    def rearrange(self) -> None:
        """The data policies changed: sort the rows again."""
        self.buffer.arrange(keep_served=self.chain.wants_kept)
        self.row_source.rearrange()

    def takes_from(self, policy: str) -> bool:
        """Whether this stream takes rows of ``policy``."""
        return self.row_source.policy == policy and not self.done

    def receive(self, rows: Sequence[Row]) -> None:
        """Add accepted rows of its row source."""
        self.row_source.add(rows)
        if self.row_source.exclusive:
            self.starved = False

    def next_version(self, newest: int) -> int:
        """The version that the next batch to be cut will presumably update."""
        batch = self.outstanding
        if batch is None or newest > batch.asked:
            return newest
        update = self.updates + 1
        published = update % self.settings.publish_every == 0 or update >= self.settings.steps
        return newest + 1 if published else newest

    def observe(self, sequences: int, trajectories: int) -> None:
        """Update the estimate of sequences of this policy per trajectory."""
        if trajectories == 0:
            return
        seen = sequences / trajectories
        if self._observed:
            self.per_trajectory += EXPECTATION_WEIGHT * (seen - self.per_trajectory)
        else:
            self.per_trajectory, self._observed = seen, True

    def offer(
        self,
        received: ReceivedGroup,
        share: PolicyShare,
        group: int,
        first_trajectory: int,
        newest: int,
        wanted: bool = False,
    ) -> tuple[Decision, list[Row]]:
        """Judge a group and buffer its rows; returns the decision and the rows kept. After the last
        update rows are kept only for other policies, if ``wanted``, and evicted here at once.
        """
        ruling = self._judge(share, newest, wanted)
        if ruling.refusal is not None:
            self.reasons[ruling.refusal.reason] += 1
            return ruling, []
        self.groups_accepted += 1
        oldest = self.staleness.oldest(self.next_version(newest))
        kept, stale = rows_of(received, share, oldest, self._arrivals, group, first_trajectory)
        self._arrivals += len(kept)
        self.rows.accepted += len(kept) + stale
        self.rows.stale += stale
        self.rows.untrained += len(share.indexes) - len(kept) - stale
        if self.done:
            self.rows.evicted += len(kept)
        elif kept:
            self.buffer.add(kept)
            self.starved = False
        return ruling, kept

    def _judge(self, share: PolicyShare, newest: int, wanted: bool) -> Decision:
        if self.done and not wanted:
            return Decision(PromptRefusal("", "the policy has completed all its updates"))
        if self.row_source.exclusive:
            only = f"the policy trains only on rows of {self.row_source.policy!r}"
            return Decision(PromptRefusal("", only))
        trained = share.summary.min_versions[share.summary.trained > 0]
        if trained.size == 0:
            return Decision(PromptRefusal("", "no trained token"))
        if self.staleness.too_stale(int(trained.max()), self.next_version(newest)):
            return Decision(PromptRefusal("", "stale"))
        return self.chain.accept(share.summary)

    def cut(self, version: int, source_version: int = -1) -> ServedBatch | None:
        """The batch that updates ``version``: the unacknowledged one again, the next of those that
        a restarted trainer must repeat, or a new one if there are enough rows. Rows too stale for a
        new one are first dropped, counted and listed in ``dropped``. A repeated batch is
        bit-identical: the weights that the trainer republished under a new number are those that
        the batch was cut for. ``source_version``: the newest version of the policy of its row
        source."""
        self.dropped = []
        if (batch := self.outstanding) is not None:
            if batch.asked != version and not self.trainer_is_new:
                raise Refused(
                    409,
                    f"batch {batch.id!r}, which updates version {batch.asked}, is not yet acknowledged",
                )
            self.trainer_is_new = False
            self.outstanding = replace(batch, asked=version)
            return self.outstanding
        if self._to_repeat:
            self.trainer_is_new = False
            self.outstanding = replace(self._to_repeat.popleft(), asked=version)
            return self.outstanding
        if self.done:
            return None
        stale = self.buffer.drop_stale(self.staleness.oldest(version))
        self.rows.stale += len(stale)
        self.dropped = [row.item.arrival for row in stale]
        sourced = self.row_source.choose(version, source_version)
        missing = self.settings.batch_sequences - len(sourced.rows)
        waits = self.row_source.exclusive and missing > 0
        rows = None if waits else self._choose(version, missing)
        self.starved = rows is None
        if rows is None:
            return None
        first = sum(row.item.times_served == 0 for row in rows)
        self.rows.replayed += len(rows) - first
        self.trainer_is_new = False
        name = f"{self.policy}-{self.updates:06d}"
        self.row_source.take(sourced)
        self.outstanding = ServedBatch(name, version, tuple(rows), first, version, sourced=sourced)
        self.staleness.record(self.outstanding.ages)
        return self.outstanding

    def encode(
        self, batch: ServedBatch, named_rewards: Sequence[str] = ()
    ) -> list[bytes | memoryview]:
        """The frame of a batch, in parts; the same bytes on every call with the same ``named_rewards``.
        :class:`UserError` if an episode has none of a name."""
        return pack(
            batch.id,
            self.policy,
            batch.version,
            self.settings.temperature,
            batch.rows,
            batch.sourced,
            named_rewards,
        )

    def rows_needed(self) -> Iterator[Row]:
        """All rows that are served or may still be."""
        yield from self.buffer.fresh
        yield from self.buffer.kept
        yield from self.row_source.waiting
        for batch in (self.outstanding, *self._unreleased, *self._to_repeat):
            if batch is not None:
                yield from batch.all_rows

    def _choose(self, version: int, count: int) -> list[Row] | None:
        if self.chain.draws is None and len(self.buffer) < count:
            return None
        if not (self.chain.chooses or self.chain.wants_kept):
            return self.buffer.take_first(count)
        fresh = self.chain.arranged(count, [row.item for row in self.buffer.fresh], version)
        kept = [row.item for row in self.buffer.kept]
        arrivals: list[int] | None
        if self.chain.draws is not None:
            arrivals = self.chain.draw(count, fresh, kept, version)
        else:
            arrivals = [row.arrival for row in fresh[:count]] if len(fresh) >= count else None
        if arrivals is None:
            return None
        self.chain.served(arrivals, fresh, kept, version)
        by_arrival = {row.item.arrival: row for row in self.buffer.take(set(arrivals))}
        return [by_arrival[arrival] for arrival in arrivals]

    def acknowledge(self, batch_id: str) -> ServedBatch | None:
        """The update of a batch is done; ``None`` if it was acknowledged before."""
        batch = self.outstanding
        if batch is None or batch.id != batch_id:
            if batch_id == self.last_acknowledged:
                return None
            expected = f"{batch.id!r}" if batch else "none"
            raise Refused(409, f"batch {batch_id!r} is not being trained; {expected} is")
        self.rows.trained += batch.first_served
        self.row_source.counts.trained += len(batch.sourced.rows)
        self.tokens_trained += sum(row.trained for row in batch.all_rows)
        rewards = [row.item.reward for row in batch.all_rows]
        self.trained_reward = sum(rewards) / len(rewards)
        self.statistics.end_step()
        self.episode_means.take(batch.all_rows)
        if not batch.again:
            fresh = [row for row in batch.rows if row.item.times_served == 0]
            consumed = batch.sourced.rows if self.row_source.exclusive else fresh
            self.tokens_consumed += sum(row.trained for row in consumed)
            self.buffer.served(batch.rows)
        self.updates += 1
        if self.settings.keeps_batches:
            self._unreleased.append(batch)
        self.outstanding, self.last_acknowledged = None, batch_id
        if self.done:
            self.rows.evicted += len(self.buffer.evict_oldest(len(self.buffer)))
            self.row_source.clear()
        return batch

    def release(self, updates: int) -> None:
        """A checkpoint covers the updates up to ``updates``: their batches are not needed again."""
        self.released = max(self.released, updates)
        while len(self._unreleased) > self.updates - self.released:
            self._unreleased.popleft()

    def newest_state(self, saved: Sequence[int]) -> int:
        """The newest of the ``saved`` states (updates after which they were saved) that a trainer can continue
        from: batches of all later updates are kept. 409 if there is none."""
        first = self.updates - len(self._unreleased)
        fitting = [updates for updates in saved if first <= updates <= self.updates]
        if not fitting:
            has = " or ".join(str(updates) for updates in saved) or "no"
            hint = (
                "Restore a valid checkpoint of one of these updates, or start a new run; with [checkpoint] "
                "keep = 2 or more, the checkpoint before a damaged one is enough"
                if self.settings.keeps_batches
                else "With [checkpoint] every set, a trainer that dies continues from its last checkpoint"
            )
            raise Refused(
                409,
                f"a trainer of {self.policy!r} restarted with {has} updates, but {self.updates} were made; "
                f"batches are kept from update {first} on. {hint}",
            )
        return max(fitting)

    def recovered_state(self, made: int) -> int:
        """The state that a trainer with the weights after ``made`` updates continues from: theirs if
        the batches of all later ones are kept, or else that after all updates.
        """
        first = self.updates - len(self._unreleased)
        return made if first <= made <= self.updates else self.updates

    def rewind(self, updates: int) -> bool:
        """Go back to the trainer's checkpoint (:meth:`newest_state`): the batches of later updates
        will be served again in order, before any other. Returns whether there are any.
        """
        missing = self.updates - updates
        again = [self._unreleased.pop() for _ in range(missing)][::-1]
        for batch in again:
            self.rows.trained -= batch.first_served
            self.row_source.counts.trained -= len(batch.sourced.rows)
            self.tokens_trained -= sum(row.trained for row in batch.all_rows)
        if self.outstanding is not None and (again or self._to_repeat):
            # It is served again after the batches that precede it.
            again.append(self.outstanding)
            self.outstanding = None
        repeated = {batch.id for batch in again[:missing]}
        self._to_repeat.extendleft(
            replace(batch, again=batch.again or batch.id in repeated) for batch in reversed(again)
        )
        self.updates = updates
        if missing:
            self.last_acknowledged = ""
        return missing > 0

    def evict_beyond_limit(self) -> list[int]:
        """Evict the oldest rows beyond the limit, for a policy whose trainer is silent; returns
        their arrivals.
        """
        evicted = self.buffer.evict_oldest(len(self.buffer) + self.being_trained - self.limit)
        self.rows.evicted += len(evicted)
        return evicted
