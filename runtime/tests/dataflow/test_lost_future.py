"""RaaS that know versions which the journal has lost, after a run goes on from an older copy of it."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.fleet.notices import has_notices, notices
from astraflow_runtime.dataflow.journal.entries import LeasesRevoked
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.replay import JournalReplay
from astraflow_wire.messages import LeaseTasks, RenewLeases


@pytest.fixture
def gone_back(bench, config, tmp_path):
    """A run whose journal was copied at version 0 with a leased task, and which goes on from that copy after
    version 2 was announced."""
    b = bench(config(run__max_staleness=4), journal=tmp_path / "journal")
    b.begin("r0", "r1")
    b.task = b.lease(free=2)[0][0]
    copy = shutil.copytree(b.journal, tmp_path / "copy")
    b.announce(1)
    b.announce(2)
    b.state.close()
    shutil.rmtree(b.journal)
    copy.rename(b.journal)
    b.flow = b.build()
    journal = Journal(b.journal, lambda: b.time[0])
    JournalReplay(b.flow, journal.reader, partial(b.time.__setitem__, 0)).run(journal.entries())
    b.state.restore(journal, resumed=False)
    assert b.state.newest == {"solver": 0}
    return b


def beat(b, serving, seen, digest, tasks=()):
    message = RenewLeases(
        raas="r0",
        tasks=list(tasks),
        serving=serving,
        seen=seen,
        digests={"solver": digest} if digest else {},
    )
    return b.flow.leasing.renew(b.stamped(message)).notices


def test_it_loses_its_tasks_and_discards_what_it_has(gone_back, caplog):
    b = gone_back
    told = beat(b, {"solver": 2}, {"solver": 2}, "d2", [b.task.id])
    assert told.discard == {"solver": "d2"}
    assert [revoked.task for revoked in told.revoked] == [b.task.id]
    assert [each.version for each in told.announcements] == [0]
    (warning,) = [r.getMessage() for r in caplog.records if "not have" in r.getMessage()]
    assert "it serves version 2 of 'solver', and the newest is 0" in warning
    assert b.state.train.queued == 1 and b.state.train.first().attempts == 0
    with pytest.raises(Refused, match="waits in the queue"):
        b.push(b.task, version=0)
    assert b.lease(free=2, serving=2)[0] == []
    b.lease(free=2, serving={})
    assert b.lease(free=2, serving=0)[0][0].id == b.task.id
    assert not notices(b.state, b.state.fleet.get("r0")).discard


def test_its_wait_says_why_it_gets_nothing(gone_back):
    b = gone_back
    beat(b, {"solver": 2}, {"solver": 2}, "d2")
    record = b.state.fleet.get("r0")
    record.waiting_since = b.time[0]
    record.set_idle_slots(2, b.time[0])
    (wait,) = [w for w in b.flow.waits() if w.who == "r0"]
    assert wait.what.startswith("it must discard weights that this run does not have: it serves")
    assert beat(b, {}, {}, "").discard == {}


@pytest.mark.parametrize(
    ("serving", "seen", "digest", "foreign"),
    [
        ({"solver": 1}, {"solver": 1}, "lost", "it serves other weights as version 1 of 'solver'"),
        ({"solver": 0}, {"solver": 2}, "d0", "it knows version 2 of 'solver', and the newest is 1"),
        ({"solver": 1}, {"solver": 1}, "d1", ""),
        ({"solver": 1}, {"solver": 1}, "", ""),
        ({}, {"solver": 1}, "", ""),
    ],
)
def test_weights_are_known_by_number_and_digest(gone_back, serving, seen, digest, foreign):
    """Version 1 was announced anew; a RaaS that sends no digest is identified by the number alone."""
    b = gone_back
    b.announce(1)
    notices = beat(b, serving, seen, digest)
    assert notices.discard == ({"solver": digest} if foreign else {})
    assert list(b.state.fleet.get("r0").foreign.values()) == ([foreign] if foreign else [])


def test_a_group_of_lost_versions_waits_until_its_raas_has_said_what_it_serves(gone_back):
    """The numbers of its versions may have been given to others meanwhile."""
    b = gone_back
    b.announce(1)
    with pytest.raises(
        Refused, match=r"must renew its leases before .* version 1 of 'solver'"
    ) as e:
        b.push(b.task, version=1)
    assert e.value.status == 503
    beat(b, {"solver": 1}, {"solver": 1}, "lost", [b.task.id])
    with pytest.raises(Refused) as e:
        b.push(b.task, version=1)
    assert e.value.status == 409


def test_a_group_of_known_versions_is_taken_at_once(gone_back):
    assert gone_back.push(gone_back.task, version=0).status == "accepted"


def test_a_poll_ends_once_for_the_notice(gone_back):
    """A RaaS that ignores it does not poll in a tight loop."""
    b = gone_back
    message = LeaseTasks(raas="r0", free=2, wait_s=0, serving={"solver": 2}, seen={"solver": 2})
    record = b.flow.leasing.ask(b.stamped(message))
    assert has_notices(b.state, record)
    assert b.flow.leasing.lease(record, 2).notices.discard == {"solver": ""}
    record = b.flow.leasing.ask(b.stamped(message))
    assert not has_notices(b.state, record)


def test_the_journal_has_the_lost_leases(gone_back):
    b = gone_back
    beat(b, {"solver": 2}, {"solver": 2}, "d2", [b.task.id])
    b.restart()
    assert b.state.train.queued == 1
    b.state.close()
    entries = [e for _, e in Journal(b.journal, lambda: 0.0).entries()]
    (revoked,) = [e for e in entries if isinstance(e, LeasesRevoked)]
    assert revoked.raas == "r0" and "does not have" in revoked.reason
