"""Batches that borrow rows of another policy: which, how old, whose, and what is left after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from astraflow_core.dataflow.accounting import lent_counts, row_counts
from astraflow_core.errors import PluginError, RunFailed
from astraflow_core.wire.batches import decode_batch, encode_batch
from astraflow_core.wire.messages import RegisterTrainer


class Half:
    """Up to half of a batch: the newest rows of policy ``a``."""

    source, max_age = "a", 9

    def most(self, count):
        return count // 2

    def borrow(self, count, lent, version):
        return lent[-self.most(count) :]


@pytest.fixture
def pair(bench, config, tmp_path):
    """Policies ``a``, and ``b`` which borrows from it: batches of four, groups of two rows for each."""

    def make(borrower=Half, **changes):
        settings = {"run__max_staleness": 2, "run__steps": 20, **changes}
        b = bench(
            config(policies=("a", "b"), **settings), data={"b": (borrower,)}, journal=tmp_path
        ).begin()
        return b

    return make


def roll_out(b, groups, version=0, policies=("a", "b")):
    done = 0
    while done < groups:
        tasks, _ = b.lease(2, "r0", b.state.versions.newest)
        for task in tasks:
            b.push(task, version=version, policies=policies)
            done += 1


def update(b, policy, publish=True):
    version = b.state.versions.newest[policy]
    batch = b.next_batch(version, policy)
    if publish:
        b.announce(version + 1, policy)
        b.acknowledge(batch.id, version + 1, policy)
    return batch


def test_half_of_the_batch_is_the_others_and_says_so(pair):
    b = pair()
    b.announce(1, "a")
    b.announce(2, "a")
    roll_out(b, 2, version=0)
    batch = update(b, "b", publish=False)
    assert (batch.policy, batch.source, batch.version) == ("b", "a", 0)
    assert batch.counted_from.tolist() == [0, 0, 2, 2]  # the next batch of a updates 2
    assert batch.ages[batch.loss_mask].tolist() == [0] * 6 + [2] * 6
    own, lent = batch.take(np.array([0, 1])), batch.take(np.array([2, 3]))
    assert lent.group.tolist() == [-2, -2] and set(own.group) <= {0, 1}
    assert set(lent.trajectory).isdisjoint(own.trajectory)
    assert lent.logprobs[lent.loss_mask].tolist() == [-0.5] * 6
    assert lent.counted_from.tolist() == [2, 2]
    assert decode_batch(encode_batch(batch)).counted_from.tolist() == [0, 0, 2, 2]
    b.check()


def test_a_row_is_borrowed_once_and_stays_its_owners(pair):
    b = pair()
    roll_out(b, 3)
    assert row_counts(b.state.streams["a"])["buffered"] == 6
    first = update(b, "b")
    stream = b.state.streams["b"]
    assert lent_counts(stream) == {
        "lent": 6, "trained": 2, "being_trained": 0, "waiting": 4, "stale": 0, "evicted": 0, "lost": 0,
    }  # fmt: skip
    assert row_counts(stream) == {
        "accepted": 6, "trained": 2, "being_trained": 0, "buffered": 4, "stale": 0, "evicted": 0, "lost": 0,
    }  # fmt: skip
    assert row_counts(b.state.streams["a"])["buffered"] == 6
    assert not update(b, "a").source
    second = update(b, "b")
    assert set(first.trajectory[first.group < 0]).isdisjoint(second.trajectory[second.group < 0])
    status = b.flow.status()["policies"]["b"]
    assert status["borrowed"]["source"] == "a" and status["borrowed"]["trained"] == 4
    b.check()


def test_what_is_too_old_for_its_own_policy_is_not_lent(pair):
    b = pair()
    roll_out(b, 2)
    for version in (1, 2, 3):
        b.announce(version, "a")
    batch = update(b, "b")
    assert batch.source == "" and batch.counted_from is None and len(batch) == 4
    assert lent_counts(b.state.streams["b"])["stale"] == 4
    b.check()


def test_own_rows_fill_up_what_was_not_lent(pair):
    b = pair(run__max_staleness=0)
    stream = b.state.streams["b"]
    assert stream.limit == 2  # half of a batch is expected from the other
    for _ in range(2):
        roll_out(b, 1, policies=("b",))
        b.next_batch(0, "b")
    assert (stream.lent_too_little, stream.limit) == (True, 4)
    assert stream.outstanding.borrowed == () and len(stream.outstanding.rows) == 4


def test_rows_that_arrive_for_the_other_complete_a_batch(pair):
    b = pair()
    roll_out(b, 1, policies=("b",))
    assert b.next_batch(0, "b") is None
    roll_out(b, 1, policies=("a",))
    assert len(b.next_batch(0, "b")) == 4


def test_a_restarted_dataflow_lends_the_same_rows(pair):
    b = pair()
    roll_out(b, 3)
    update(b, "b")
    served = encode_batch(update(b, "b", publish=False))
    b.restart()  # compares the shelf, its counts and the batches
    assert encode_batch(b.next_batch(1, "b")) == served
    b.check()


def test_a_trainer_that_comes_back_gets_the_borrowed_rows_again(pair):
    b = pair(checkpoint__every=5)
    roll_out(b, 3)
    first = encode_batch(update(b, "b"))
    b.flow.training.register(RegisterTrainer(policy="b", pid=3, host="h", updates=(0,)))
    counts = lent_counts(b.state.streams["b"])
    assert (counts["trained"], counts["being_trained"], counts["lost"]) == (0, 2, 0)
    b.restart()
    b.announce(2, "b")
    assert encode_batch(b.next_batch(2, "b")) == first
    b.check()


def test_the_story_of_a_row_tells_who_borrowed_it(pair, tmp_path):
    from astraflow_core.dataflow.journal_records import ENTRIES, read_records
    from astraflow_core.dataflow.tracing import Trace

    b = pair()
    roll_out(b, 1)
    update(b, "b")
    entries = [record[:2] for record in read_records(tmp_path / ENTRIES)]
    (story,) = Trace(1, prompt="p0").read(entries).groups.values()
    rows = {share.policy: share.rows for share in story.shares}
    assert [[use.batch for use in row.lent] for row in rows["a"]] == [["b-000000"]] * 2
    assert all(row.state == "buffered" and row.lent[0].published == 1 for row in rows["a"])
    assert all(row.state == "trained" and not row.lent for row in rows["b"])


class Greedy(Half):
    def borrow(self, count, lent, version):
        return list(lent)


def test_more_than_was_announced_is_refused(pair):
    b = pair(Greedy)
    roll_out(b, 3)
    with pytest.raises(RunFailed, match="'Greedy' borrowed 6 rows"):
        b.next_batch(0, "b")


def test_only_one_can_borrow(bench, config):
    with pytest.raises(PluginError, match="only one data policy of a list can borrow"):
        bench(config(policies=("a", "b")), data={"b": (Half, Greedy)})
