"""Whatever RaaS and trainers do, nothing is lost, and no row is ever too stale."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from random_policies import Borrowing, DropEqual, HalfReplayed, OldestFirst, Picky, Sharing

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.journal.tracing import Trace
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_wire.batches import NoBatch, encode_batch
from astraflow_wire.messages import RegisterTrainer, ReleaseBatches

POLICIES = ("a", "b")
RAAS = ("r0", "r1", "r2")


class Play(RuleBasedStateMachine):
    """Random leases, renewals, silences, pushes, failures, batches, acknowledgements and versions."""

    folder = None
    make_bench = None
    make_config = None

    @initialize(
        staleness=st.integers(0, 3),
        batch=st.integers(1, 7),
        group=st.integers(1, 4),
        publish_every=st.integers(1, 2),
        attempts=st.integers(1, 3),
        data=st.sampled_from(
            [
                (),
                (DropEqual,),
                (OldestFirst,),
                (DropEqual, HalfReplayed),
                {"a": (), "b": (Borrowing,)},
                {"a": (DropEqual, HalfReplayed), "b": (HalfReplayed, Borrowing)},
                {"a": (), "b": (Sharing,)},
                {"a": (DropEqual, HalfReplayed), "b": (Sharing,)},
            ]
        ),
        evals=st.integers(0, 2),
        checkpoints=st.booleans(),
        refill=st.booleans(),
        twice=st.integers(0, 2),
    )
    def start(
        self,
        staleness,
        batch,
        group,
        publish_every,
        attempts,
        data,
        evals,
        checkpoints,
        refill,
        twice,
    ):
        config = type(self).make_config(
            policies=POLICIES,
            run__steps=12,
            run__max_staleness=staleness,
            run__group_size=group,
            run__task_attempts=attempts,
            run__second_leases=twice,
            run__group_deadline_s=10,
            run__refill_groups=refill,
            run__max_consecutive_failures=10**6,
            run__deadline_s=1e6,
            run__start_deadline_s=1e6,
            policy__batch_sequences=batch,
            policy__publish_every=publish_every,
            eval__every=2,
            checkpoint__every=3 * checkpoints,
        )
        self.checkpoints, self.first_served = checkpoints, {}
        self.staleness, self.batch_size = staleness, batch
        self.refill = refill
        self.attempts, self.journal = attempts, Path(tempfile.mkdtemp(dir=type(self).folder))
        self.b = (
            type(self)
            .make_bench(
                config,
                prompts=5,
                admission=[Picky],
                data=data,
                journal=self.journal,
                evals={"held": evals} if evals else {},
            )
            .begin(*RAAS)
        )
        self.held = {}
        self.batches, self.borrowed = {}, {policy: {} for policy in POLICIES}
        self.pushed = []
        self.trained = []
        self.serving = {raas: dict.fromkeys(POLICIES, 0) for raas in RAAS}

    def come_back(self, raas):
        record = self.b.state.fleet.get(raas)
        if record.health in ("gone", "left"):
            self.b.register_raas(raas)

    @rule(raas=st.sampled_from(RAAS), free=st.integers(1, 12))
    def lease(self, raas, free):
        self.come_back(raas)
        running = self.b.state.train.running
        under_way = {p: self.under_way(p) for p in POLICIES}
        tasks, notices = self.b.lease(free, raas, self.serving[raas])
        newest = self.b.state.versions.newest
        for task in tasks:
            self.held[task.id] = (task, raas, dict(self.serving[raas]))
            if task.pinned:
                assert task.pinned == self.serving[raas]
            else:
                lags = [newest[p] - self.serving[raas][p] for p in POLICIES]
                assert max(lags) <= self.staleness
        leased = sum(not task.pinned for task in tasks)
        live = [s for s in self.b.state.streams.values() if not s.done]
        names = {stream.policy for stream in live}
        if leased > (running == 0):
            for stream in [s for s in live if s.shares not in names]:
                assert (
                    self.under_way(stream.policy) <= max(stream.limit, under_way[stream.policy]) + 4
                )
        if notices.pins:
            self.serving[raas] = dict(notices.pins)

    def under_way(self, policy):
        state = self.b.state
        stream = state.streams[policy]
        if stream.row_source.exclusive:
            counts = stream.source_counts
            there = counts["waiting"] + counts["being_trained"]
            return state.train.in_flight.get(stream.row_source.policy, 0) + there
        return state.train.in_flight.get(policy, 0) + len(stream.buffer) + stream.being_trained

    @rule(raas=st.sampled_from(RAAS), forget=st.booleans())
    def renew(self, raas, forget):
        self.come_back(raas)
        mine = [name for name, (_, holder, _) in self.held.items() if holder == raas]
        notices = self.b.renew([] if forget else mine, raas)
        for revoked in notices.revoked:
            task = self.b.state.train.get(revoked.task) or self.b.state.eval.get(revoked.task)
            assert task is None or task.lease_of(raas) is None
        self.b.state.fleet.get(raas).serving = dict(self.serving[raas])

    @rule(raas=st.sampled_from(RAAS))
    def refresh(self, raas):
        pins = self.b.state.evaluations.pins(raas)
        self.serving[raas] = dict(pins or self.b.state.versions.newest)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def push(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        task, raas, began = self.held[name]
        if data.draw(st.booleans()):
            raas = data.draw(st.sampled_from(RAAS))  # perhaps one that lost it, or never had it
        self.deliver(data, task, raas, began)

    @rule(raas=st.sampled_from(RAAS), data=st.data())
    def work(self, raas, data):
        """Lease and push at once, as a healthy RaaS does."""
        self.lease(raas, 12)
        for task, holder, began in list(self.held.values()):
            if holder == raas and task.id in self.b.state.train.held_by(raas):
                self.deliver(data, task, raas, began)

    def deliver(self, data, task, raas, began):
        name = task.id
        count = task.group_size - data.draw(st.sampled_from([0, 0, 0, task.group_size]))
        rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
        newest = self.b.state.versions.newest
        each = dict(task.pinned) or {
            p: data.draw(st.integers(began[p], newest[p])) for p in POLICIES
        }
        version = min(each.values()) if not task.pinned else next(iter(each.values()))
        if task.pinned and len(set(each.values())) > 1:
            policies = (next(iter(each)),)
        else:
            policies = data.draw(st.sampled_from([POLICIES, POLICIES, ("a",), ("a", "b", "b")]))
        table = self.b.state.eval if task.pinned else self.b.state.train
        late = 0 if task.pinned else data.draw(st.integers(0, max(count - 1, 0)))
        rewards = rewards[: count - late]
        before = table.outcome(name)
        ended_by = table.ended_by(name)
        live = table.get(name)
        holds = live is not None and live.lease_of(raas) is not None
        try:
            answer = self.b.push(
                task, raas, rewards=rewards, version=version, policies=policies, late=late
            )
        except Refused as refused:
            assert refused.status == 409
            assert not holds
            assert before is None or before in ("failed", "set_aside") or ended_by != raas
        else:
            if before is not None:
                assert (answer.status, ended_by) == ("duplicate", raas)
            else:
                assert holds
                assert answer.status in ("accepted", "rejected", "partial")
                assert answer.status != "partial" or (late and self.refill)

    @rule(data=st.data())
    def push_twice(self, data):
        """Both RaaS of a task push it, in any order; the second one is late."""
        for task in list(self.b.state.train.twice.values()):
            for raas in data.draw(st.permutations([lease.raas for lease in task.leases])):
                kept, *_ = self.held[task.id]
                self.deliver(data, kept, raas, dict.fromkeys(POLICIES, self.oldest(task, raas)))

    def oldest(self, task, raas):
        """The oldest version that the lease may have begun with."""
        lease = task.lease_of(raas)
        return min(lease.newest.values()) if lease else min(self.b.state.versions.newest.values())

    @precondition(lambda self: self.held)
    @rule(data=st.data(), fatal=st.booleans())
    def fail(self, data, fatal):
        task, raas, _ = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        self.b.fail(task, "boom", raas, fatal)

    @rule(seconds=st.sampled_from([1, 11, 31]))
    def wait(self, seconds):
        self.b.pass_time(seconds)

    @rule(raas=st.sampled_from(RAAS))
    def leave(self, raas):
        self.b.leave(raas)

    @rule(raas=st.sampled_from(RAAS))
    def drain(self, raas):
        try:
            self.b.drain(raas)
        except Refused as refused:
            assert refused.status in (404, 409)

    @rule(count=st.integers(1, 2))
    def add_raas(self, count):
        self.b.add(count)

    @rule(policy=st.sampled_from(POLICIES))
    def take_batch(self, policy):
        version = self.b.state.versions.newest[policy]
        batch = self.b.next_batch(version, policy)
        if batch is None or isinstance(batch, NoBatch):
            return
        assert encode_batch(batch) == self.first_served.setdefault(batch.id, encode_batch(batch))
        assert len(batch) == self.batch_size
        assert batch.ages[batch.loss_mask].max() <= self.staleness
        own = ~batch.spread(batch.group < 0).astype(bool) & batch.loss_mask
        assert (batch.version - batch.versions[own]).max(initial=0) <= self.staleness
        shares = self.b.state.streams[policy].row_source.exclusive
        borrowed = (batch.group < 0).sum()
        assert borrowed == len(batch) if shares else borrowed <= len(batch) // 2
        assert bool(batch.source) == bool(borrowed)
        self.batches[policy] = batch
        outstanding = self.b.state.streams[policy].outstanding
        self.borrowed[policy][batch.id] = outstanding.sourced.arrivals

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), twice=st.booleans())
    def train(self, data, twice):
        policy = data.draw(st.sampled_from(sorted(self.batches)))
        batch = self.batches.pop(policy)
        stream = self.b.state.streams[policy]
        update = stream.updates + 1
        version = self.b.state.versions.newest[policy]
        if update % stream.settings.publish_every == 0 or update == stream.settings.steps:
            version += 1
            self.b.announce(version, policy)
        for _ in range(1 + twice):
            self.b.acknowledge(batch.id, version, policy)
        assert stream.updates == update
        self.trained.append(batch.id)

    @rule(raas=st.sampled_from(RAAS), data=st.data(), rounds=st.integers(1, 4))
    def run_for_a_while(self, raas, data, rounds):
        """A healthy stretch, so that what goes wrong goes wrong in the middle of a run."""
        for _ in range(rounds):
            self.refresh(raas)
            self.work(raas, data)
            for policy in POLICIES:
                self.take_batch(policy)
            if self.batches:
                self.train(data, False)

    @rule(policy=st.sampled_from(POLICIES))
    def save_checkpoint(self, policy):
        updates = self.b.state.streams[policy].updates
        self.b.flow.training.release(ReleaseBatches(policy=policy, updates=updates))

    @rule(policy=st.sampled_from(POLICIES), data=st.data())
    def restart_trainer(self, policy, data):
        """It comes back with what its last checkpoint holds, or with all of it if it was just saved."""
        stream = self.b.state.streams[policy]
        oldest = stream.released if self.checkpoints else stream.updates
        updates = data.draw(st.integers(oldest, stream.updates))
        self.b.flow.training.register(
            RegisterTrainer(policy=policy, pid=9, host="h", updates=(updates,))
        )
        again = {f"{policy}-{number:06d}" for number in range(updates, updates + 100)}
        self.trained = [name for name in self.trained if name not in again]
        self.b.announce(self.b.state.versions.newest[policy] + 1, policy)
        self.batches.pop(policy, None)

    @precondition(lambda self: not self.b.state.progress.ending)
    @rule()
    def write_image(self):
        """A restart from here on continues from it and from the entries behind it, and is compared with one that reads
        all entries."""
        self.b.write_image()

    @rule(resumed=st.sampled_from([False, False, True]))
    def restart_dataflow(self, resumed):
        """It is killed, and another continues from the journal; or the whole run is started again."""
        self.b.restart(resumed=resumed)
        if not resumed:
            return
        self.batches.clear()
        for policy in POLICIES:
            updates = self.b.state.streams[policy].updates
            self.b.flow.training.register(
                RegisterTrainer(policy=policy, pid=9, host="h", updates=(updates,))
            )
            self.b.announce(self.b.state.versions.newest[policy] + 1, policy)
        for raas in RAAS:
            self.b.register_raas(raas)

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "b"):
            self.b.check()
            counts = self.b.flow.balance()["eval_tasks"]
            assert counts["lost"] == 0
            assert self.b.state.train.in_flight.keys() <= set(POLICIES)
            assert all(value >= -1e-6 for value in self.b.state.train.in_flight.values())
            twice = self.b.state.train.twice
            assert len(twice) <= self.b.state.config.run.second_leases
            assert all(len({lease.raas for lease in t.leases}) == 2 for t in twice.values())
            held = [raas for t in self.b.state.train.leased() for raas in t.leases]
            assert len(held) == sum(len(self.b.state.train.held_by(raas)) for raas in RAAS)

    @invariant()
    def what_failed_on_a_raas_goes_to_others_first(self):
        if hasattr(self, "b"):
            for task in self.b.state.train.leased():
                for lease in task.leases:
                    assert lease.since >= task.failed_on.get(lease.raas, 0)

    @invariant()
    def the_staleness_bound_holds(self):
        if hasattr(self, "b"):
            for stream in self.b.state.streams.values():
                assert stream.staleness.highest_seen <= self.staleness

    @invariant()
    def batches_are_numbered_without_gaps(self):
        if hasattr(self, "b"):
            for policy in POLICIES:
                own = [name for name in self.trained if name.startswith(policy)]
                assert own == [f"{policy}-{i:06d}" for i in range(len(own))]

    def teardown(self):
        """The journal records what happened to each prompt and its groups."""
        if not hasattr(self, "b"):
            return
        traces = [Trace(self.attempts, prompt=f"p{n}") for n in range(5)]
        JournalReader(self.journal).feed(*traces)
        state, stories = self.b.state, {}
        for trace in traces:
            stories |= trace.groups
        offers = [offer for trace in traces for offer in trace.offers]
        assert sum(not offer.admitted for offer in offers) == sum(
            state.admission.chain.refused.values()
        )
        assert sum(offer.forced for offer in offers) == state.admission.forced
        assert state.train.admitted == sum(offer.admitted for offer in offers)
        assert len(stories) == state.train.admitted + state.train.outcomes["refilled"]
        leased = {task.id for task in state.train.leased()}
        for trace in traces if not state.progress.ending else ():
            held = {name for name in trace.leases.held if name.startswith("train-")}
            assert held == leased
            assert trace.leases.second.keys() == state.train.twice.keys()
        for name, story in stories.items():
            live = "leased" if name in leased else "queued"
            # That leases end when all updates are done follows from the acknowledgement before.
            if not state.progress.ending or story.state not in ("leased", "queued"):
                assert story.state == (state.train.outcome(name) or live)
        for policy, stream in state.streams.items():
            shares = [s for story in stories.values() for s in story.shares if s.policy == policy]
            rows = [row for share in shares for row in share.rows]
            assert sum(share.accepted for share in shares) == stream.groups_accepted
            assert len(rows) + sum(share.stale for share in shares) == stream.rows.accepted
            states = Counter(row.state for row in rows)
            assert states["stale"] + sum(share.stale for share in shares) == stream.rows.stale
            if not stream.done:
                assert states["evicted"] == stream.rows.evicted
            trained = {(row.arrival, use.batch) for row in rows for use in row.batches}
            lent = [use for row in rows for use in row.lent]
            assert len(lent) == sum(
                len(uses)
                for other in state.streams.values()
                if other.row_source.policy == policy
                for uses in self.borrowed[other.policy].values()
            )
            for batch in stream._unreleased:
                for row in batch.rows:
                    assert (row.item.arrival, batch.id) in trained


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_nothing_is_lost_and_nothing_is_too_stale(bench, config, tmp_path):
    Play.folder = tmp_path
    Play.make_bench, Play.make_config = staticmethod(bench), staticmethod(config)
    checks = settings(
        max_examples=80,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Play, settings=checks)
