"""Batches that borrow rows of another policy: their choice, age and owner, and the rows left after a restart."""

from __future__ import annotations

import numpy as np
import pytest
from random_policies import DropEqual, HalfReplayed, OldestFirst

from astraflow_core.errors import PluginError, Refused, RunFailed
from astraflow_runtime.dataflow.reports.accounting import row_counts
from astraflow_wire.batches import decode_batch, encode_batch
from astraflow_wire.messages import RegisterTrainer, SwapPolicy


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
    assert stream.source_counts == {
        "lent": 6, "trained": 2, "being_trained": 0, "waiting": 4, "stale": 0, "evicted": 0, "lost": 0,
    }  # fmt: skip
    assert row_counts(stream) == {
        "accepted": 6, "trained": 2, "being_trained": 0, "buffered": 4, "stale": 0, "evicted": 0, "lost": 0,
    }  # fmt: skip
    assert row_counts(b.state.streams["a"])["buffered"] == 6
    assert not update(b, "a").source
    second = update(b, "b")
    assert set(first.trajectory[first.group < 0]).isdisjoint(second.trajectory[second.group < 0])
    status = b.flow.status().policies["b"]
    assert status.borrowed.source == "a" and status.borrowed.trained == 4
    b.check()


def test_what_is_too_old_for_its_own_policy_is_not_lent(pair):
    b = pair()
    roll_out(b, 2)
    for version in (1, 2, 3):
        b.announce(version, "a")
    batch = update(b, "b")
    assert batch.source == "" and batch.counted_from is None and len(batch) == 4
    assert b.state.streams["b"].source_counts["stale"] == 4
    b.check()


def test_own_rows_fill_up_what_was_not_lent(pair):
    b = pair(run__max_staleness=0)
    stream = b.state.streams["b"]
    assert stream.limit == 2  # half of a batch is expected from the other
    for _ in range(2):
        roll_out(b, 1, policies=("b",))
        b.next_batch(0, "b")
    assert (stream.row_source.underfilled, stream.limit) == (True, 4)
    assert stream.outstanding.sourced.rows == () and len(stream.outstanding.rows) == 4


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
    counts = b.state.streams["b"].source_counts
    assert (counts["trained"], counts["being_trained"], counts["lost"]) == (0, 2, 0)
    b.restart()
    b.announce(2, "b")
    assert encode_batch(b.next_batch(2, "b")) == first
    b.check()


def test_the_lineage_of_a_row_shows_which_policy_borrowed_it(pair, tmp_path):
    from astraflow_runtime.dataflow.journal.tracing import Trace
    from astraflow_runtime.dataflow.journal_reader import JournalReader

    b = pair()
    roll_out(b, 1)
    update(b, "b")
    trace = Trace(1, prompt="p0")
    JournalReader(tmp_path).feed(trace)
    (story,) = trace.groups.values()
    rows = {share.policy: share.rows for share in story.shares}
    assert [[use.batch for use in row.lent] for row in rows["a"]] == [["b-000000"]] * 2
    assert all(row.state == "buffered" and row.lent[0].published == 1 for row in rows["a"])
    assert all(row.state == "trained" and not row.lent for row in rows["b"])


class Whole(Half):
    """All rows of a batch are those of policy ``a``."""

    def most(self, count):
        return count


def test_a_wholly_shared_stream_has_rows_of_the_other_only(pair):
    b = pair(Whole)
    roll_out(b, 2)
    b.announce(1, "a")
    stream, owner = b.state.streams["b"], b.state.streams["a"]
    assert stream.shares == "a"
    assert dict(stream.reasons) == {"the policy trains only on rows of 'a'": 2}
    batch = update(b, "b", publish=False)
    assert (batch.policy, batch.source, batch.version) == ("b", "a", 0)
    assert batch.counted_from.tolist() == [1] * 4 and (batch.group < 0).all()
    assert batch.ages[batch.loss_mask].tolist() == [1] * 12
    assert row_counts(stream)["accepted"] == 0
    assert stream.source_counts == {
        "lent": 4, "trained": 0, "being_trained": 4, "waiting": 0, "stale": 0, "evicted": 0, "lost": 0,
    }  # fmt: skip
    assert row_counts(owner)["buffered"] == 4  # both train on all of them
    assert len(b.next_batch(1, "a")) == 4
    b.check()


def test_less_than_a_whole_batch_waits(pair):
    b = pair(Whole)
    roll_out(b, 1)
    assert b.next_batch(0, "b") is None
    assert b.flow.training.lacking("b") == (
        "2 of 4 sequences of 'a' are available; 0 tasks are running"
    )
    roll_out(b, 1, policies=("a",))
    assert len(b.next_batch(0, "b")) == 4


@pytest.mark.parametrize("first", ["a", "b"])
def test_both_have_each_batch_of_a_synchronous_run(pair, first):
    """Whichever trainer asks first: the owner's rows are not too old to be borrowed before it has published."""
    b = pair(Whole, run__max_staleness=0, run__steps=3)
    for version in range(3):
        roll_out(b, 2, version=version, policies=("a",))
        served = [b.next_batch(version, policy) for policy in (first, "ab".replace(first, ""))]
        assert all(len(batch) == 4 for batch in served)
        for batch in served:
            b.announce(version + 1, batch.policy)
            b.acknowledge(batch.id, version + 1, batch.policy)
        b.check()
    assert b.state.streams["b"].source_counts["trained"] == 12
    assert b.flow.status().state == "finished"


def test_a_slow_borrower_does_not_hold_the_owner_up(pair):
    b = pair(Whole, run__max_staleness=0)
    for version in range(4):
        roll_out(b, 2, version=version, policies=("a",))
        update(b, "a")
    counts = b.state.streams["b"].source_counts
    assert (counts["lent"], counts["waiting"], counts["evicted"]) == (16, 4, 12)
    assert b.next_batch(0, "b") is None  # all are a version too old
    assert b.state.streams["b"].source_counts["stale"] == 4
    roll_out(b, 2, version=4, policies=("a",))
    assert b.next_batch(0, "b").counted_from.tolist() == [4] * 4
    b.check()


def test_an_owner_that_is_done_continues_to_lend(pair):
    b = pair(Whole, run__max_staleness=1, run__steps=2)
    for version in range(2):
        roll_out(b, 2, version=version, policies=("a",))
        update(b, "a")
    owner, stream = b.state.streams["a"], b.state.streams["b"]
    assert owner.done and not stream.done
    for _ in range(2):
        while (batch := b.next_batch(b.state.versions.newest["b"], "b")) is None:
            under_way = len(stream.row_source.waiting)
            tasks, _ = b.lease(64, "r0", b.state.versions.newest)
            assert 2 * len(tasks) == stream.limit - under_way == 8 - under_way
            for task in tasks:
                answer = b.push(task, version=2, policies=("a",))
                assert answer.status == "accepted"
            b.check()
        b.announce(b.state.versions.newest["b"] + 1, "b")
        b.acknowledge(batch.id, b.state.versions.newest["b"], "b")
    counts = row_counts(owner)
    assert counts["accepted"] == 8 + counts["evicted"] and counts["buffered"] == 0
    assert b.flow.status().state == "finished"
    b.restart()
    b.check()


def test_while_the_owner_is_silent_the_borrower_sets_the_pace(pair):
    b = pair(Whole, run__max_staleness=0, run__deadline_s=20)
    b.pass_time(19)
    assert b.next_batch(0, "b") is None
    b.state.trainers["b"].ask(b.time[0], 1000.0)
    b.pass_time(2)
    assert [stream.policy for stream in b.state.live_streams()] == ["b"]
    b.register_raas()
    tasks, _ = b.lease()
    assert len(tasks) == 2  # a batch of four, two sequences of its owner each
    for task in tasks:
        b.push(task, policies=("a",))
    assert b.lease()[0] == []
    assert len(b.next_batch(0, "b")) == 4
    assert b.lease()[0] == []
    b.check()


def test_a_shared_stream_survives_restarts_of_both(pair):
    b = pair(Whole, checkpoint__every=5)
    roll_out(b, 3)
    first = encode_batch(update(b, "b"))
    b.flow.training.register(RegisterTrainer(policy="b", pid=3, host="h", updates=(0,)))
    counts = b.state.streams["b"].source_counts
    assert (counts["trained"], counts["being_trained"], counts["lost"]) == (0, 4, 0)
    b.restart()
    b.announce(2, "b")
    assert encode_batch(b.next_batch(2, "b")) == first
    b.acknowledge("b-000000", 2, "b")
    assert b.state.streams["b"].tokens_trained == 12
    b.check()


def test_the_balance_of_a_shared_stream_counts_what_is_lent(pair):
    b = pair(Whole)
    for _ in range(2):
        roll_out(b, 2)
        update(b, "b")
    window = b.state.balance.snapshot()["clocks"]["b"]["window"]
    assert (window["steps"], window["consumed"]) == (1, 12)
    assert (window["produced"], window["accepted"]) == (24, 12)  # its own sequences are for nothing


def test_the_log_of_a_shared_stream_has_the_age_of_its_rows(pair):
    lines = []
    b = pair(Whole)
    b.state.records.log = lines.append
    roll_out(b, 2)
    b.announce(1, "a")
    update(b, "b")
    (line,) = [line for line in lines if line.get("policy") == "b"]
    assert (line["staleness"], line["borrowed_age"]) == ({"1": 4}, {"1": 4})
    assert (line["staleness_mean"], line["staleness_max"], line["borrowed"]) == (1.0, 1, 4)


@pytest.mark.parametrize("idle", [DropEqual, OldestFirst, HalfReplayed])
def test_a_policy_that_would_decide_nothing_is_refused(bench, config, idle):
    with pytest.raises(PluginError, match=f"data policy '{idle.__name__}' of 'b' would have"):
        bench(config(policies=("a", "b")), data={"b": (idle, Whole)})


@pytest.mark.parametrize("unknown", ["b", "c"])
def test_rows_are_taken_of_another_policy_of_the_run_only(bench, config, unknown):
    class Astray(Half):
        source = unknown

    told = f"'Astray' of policy 'b' borrows rows of '{unknown}', .* another policy .* the others are 'a'"
    with pytest.raises(PluginError, match=told):
        bench(config(policies=("a", "b")), data={"b": (Astray,)})


def test_no_one_borrows_from_one_that_has_no_rows(bench, config):
    class OfB(Half):
        source = "b"

    with pytest.raises(PluginError, match="set source to 'a'"):
        bench(config(policies=("a", "b", "c")), data={"b": (Whole,), "c": (OfB,)})


def test_a_stream_is_shared_from_a_swap_on(bench, config, tmp_path):
    kinds = {"Half": Half, "Whole": Whole, "Keyed": type("Keyed", (Whole,), {"key": len})}
    b = bench(
        config(policies=("a", "b"), run__max_staleness=2, policy__data=[{"use": "Half"}]),
        data={"b": (Half,)},
        journal=tmp_path,
        build_policy=lambda place, table, number: kinds[table.use](),
    ).begin()

    def swap(use):
        table = {"use": use} if use else {}
        b.flow.swapping.swap(
            SwapPolicy(id=use, place="b", name="Half", author="ada", at=0.0, table=table)
        )

    roll_out(b, 2)
    with pytest.raises(Refused, match="'Half' of 'b' would have no effect"):
        swap("Keyed")
    assert not b.state.streams["b"].row_source.exclusive
    swap("Whole")
    assert len(b.next_batch(0, "b").group) == (b.next_batch(0, "b").group < 0).sum() == 4
    b.announce(1, "b")
    b.acknowledge("b-000000", 1, "b")
    assert row_counts(b.state.streams["b"])["buffered"] == 4
    b.restart()
    swap("")  # back: what was left of its own is there
    roll_out(b, 1)
    assert (b.next_batch(1, "b").group < 0).sum() == 2
    b.check()


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
