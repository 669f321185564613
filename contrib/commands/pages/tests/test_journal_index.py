"""The index of a journal finds what a reader of the whole journal finds, and follows a log that grows."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from astraflow_contrib_pages.journal import journal_index, journal_views
from astraflow_contrib_pages.journal.journal_views import JournalViews
from astraflow_core.errors import Refused
from astraflow_core.types import Group, Sequence, Trajectory
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
    Evicted,
    Judged,
    Leased,
    Overdue,
    PromptsConsumed,
    PromptsRejected,
    Pushed,
    RaasGone,
)
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, encode_record
from astraflow_runtime.dataflow.journal.tracing import Trace
from astraflow_runtime.dataflow.journal_reader import FOLDER, JournalReader
from astraflow_wire.groups import GroupHeader, ReceivedGroup, encode_group
from astraflow_wire.messages import AcknowledgeBatch, AnnouncementMessage, NextBatch

PROMPTS = 7


def header(task: str, prompt: str) -> GroupHeader:
    ones = np.array([0, 1, 1])
    sequence = Sequence(
        "solver",
        ones.astype(np.int32),
        ones.astype(bool),
        -ones.astype(np.float32),
        ones.astype(np.int32) - 1,
    )
    group = Group(task, prompt, (Trajectory((sequence,), (), {"solver": 1.0}),))
    return ReceivedGroup(encode_group(group, "r0")).header


def a_run(groups: int, seed: int = 0) -> list[Entry]:
    """Groups of a row each: leased, some late, pushed, served four at a time in any order, some evicted."""
    chance, arrivals, entries = random.Random(seed), list[int](), list[Entry]()
    for number in range(groups):
        task, prompt = f"train-{number}", f"p{number % PROMPTS}"
        turned = [PromptsRejected("easy", "solved", [f"p{(number + 3) % PROMPTS}"])] if number % 5 == 0 else []  # fmt: skip
        entries.append(PromptsConsumed(cursor=number, task=task, prompt=prompt, turned=turned))
        entries.append(Leased(task=task, raas="r0", capacity=4))
        if number % 6 == 2:
            entries += [Overdue(task=task, reason="late"), Leased(task=task, raas="r1", capacity=4)]
        if number % 40 == 39:
            entries += [RaasGone(raas="r0", reason="silent"), Leased(task=task, raas="r1", capacity=4)]  # fmt: skip
        judged = [Judged("solver", "", "", number, [0])]
        entries.append(
            Pushed(header=header(task, prompt), trained=[3], accepted=True, judged=judged)
        )
        arrivals.append(number)
        if len(arrivals) >= 6:
            chance.shuffle(arrivals)
            batch, version = f"solver-{number:06d}", number // 6
            served, arrivals = arrivals[:4], arrivals[4:]
            asked = NextBatch(policy="solver", version=version, wait_s=1.0)
            entries.append(BatchRequested(message=asked, batch=batch, arrivals=served))
            done = AcknowledgeBatch(policy="solver", batch=batch, version=version + 1, metrics={})  # fmt: skip
            entries.append(Acknowledged(message=done, tokens_generated=1.0, generated={}, first_asked=0.0, waited_s=0.0))  # fmt: skip
            entries.append(Announced(message=AnnouncementMessage(policy="solver", version=version + 1, transport="http", endpoints=["http://x"], digest="d", size=1)))  # fmt: skip
            if number % 9 == 0:
                entries.append(Evicted(policy="solver", arrivals=[arrivals.pop()]))
    return entries


def write(directory: Path, entries: list[Entry]) -> bytes:
    log = b"".join(b"".join(encode_record(e, float(at))) for at, e in enumerate(entries))
    (directory / FOLDER).mkdir(exist_ok=True)
    (directory / FOLDER / ENTRIES).write_bytes(log)
    return log


@pytest.fixture(params=[1, 700, 1 << 20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    found: int = request.param
    monkeypatch.setattr(journal_index, "BLOCK_BYTES", found)
    monkeypatch.setattr(journal_index.JournalIndex.__init__, "__defaults__", (found,))
    return found


def test_a_life_is_that_of_the_whole_journal(tmp_path: Path, block_bytes: int) -> None:
    write(tmp_path, a_run(90))
    views = JournalViews(tmp_path)
    asked = [("group", f"train-{n}") for n in range(0, 90, 4)]
    asked += [("prompt", f"p{n}") for n in range(PROMPTS)]
    for subject, name in asked:
        trace = Trace(3, **{subject: name})
        JournalReader.of_run(tmp_path).feed(trace)
        expected = {"share": 1.0, "offers": [asdict(o) for o in trace.offers], "groups": [asdict(s) for s in trace.groups.values()]}  # fmt: skip
        assert views.life({"run": {"task_attempts": 3}}, subject, name) == expected, name


def test_only_blocks_that_may_name_a_group_are_read(tmp_path: Path) -> None:
    log = write(tmp_path, [e for e in a_run(400) if not isinstance(e, RaasGone)])
    index = journal_index.JournalIndex(tmp_path, len(log) // 50)
    index.follow()
    seen: list[Entry] = []

    class Recorder:
        def on_entry(self, at_s: float, entry: Entry) -> None:
            seen.append(entry)

    index.feed(Recorder(), {journal_index.task_key("train-200")})
    assert 0 < len(seen) < 2 * len(a_run(400)) / 50 + 10
    assert any(isinstance(e, Pushed) and e.header.task == "train-200" for e in seen)


def test_a_log_that_grows_is_read_once_and_one_that_is_another_anew(tmp_path: Path) -> None:
    entries = a_run(60)
    log = write(tmp_path, entries[:100])
    views = JournalViews(tmp_path)
    first = views.funnel()["counts"]["groups pushed"]
    whole = b"".join(b"".join(encode_record(e, float(at))) for at, e in enumerate(entries))
    (tmp_path / FOLDER / ENTRIES).write_bytes(whole[: len(log) + 30])  # half a record
    assert views.funnel()["counts"]["groups pushed"] == first
    (tmp_path / FOLDER / ENTRIES).write_bytes(whole)
    assert (
        views.funnel()["counts"]["groups pushed"] == 60
        and views.funnel()["groups"][0] == "train-59"
    )
    versions = views.versions()
    assert versions["count"] == len(versions["versions"]) == sum(isinstance(e, Announced) for e in entries)  # fmt: skip
    write(tmp_path, a_run(80, seed=1)[5:])
    assert views.funnel()["counts"]["groups pushed"] == 79
    write(tmp_path, entries[:10])
    assert views.funnel()["counts"]["groups pushed"] < 4
    with pytest.raises(Refused, match="no group"):
        views.life({}, "group", "train-59")


def test_a_long_journal_is_read_over_several_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a_run(90))
    whole = JournalViews(tmp_path)
    monkeypatch.setattr(journal_views, "READ_S", 0.0)
    views = JournalViews(tmp_path)
    shares = [views.funnel()["share"]]
    assert views.leases() is None
    unread = views.life({}, "group", "train-80")
    assert unread.keys() == {"share"}
    while shares[-1] < 1:
        shares.append(views.hours(10, 0, 1e9)["share"])
    assert len(shares) > 3 and shares == sorted(shares) and shares[0] < unread["share"]
    monkeypatch.undo()
    assert views.funnel() == whole.funnel() and views.versions() == whole.versions()
    assert views.life({}, "group", "train-80") == whole.life({}, "group", "train-80")


def test_long_searches_and_those_that_wait_too_long_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a_run(90))
    views = JournalViews(tmp_path)
    monkeypatch.setattr(journal_views, "LIFE_S", 0.0)
    with pytest.raises(Refused, match="use astraflow trace group train-80") as refused:
        views.life({}, "group", "train-80")
    assert refused.value.status == 503
    monkeypatch.setattr(journal_views, "BUSY_S", 0.01)
    with views._index.lock, pytest.raises(Refused, match="ask again"):
        views.versions()
    assert views.versions()["share"] == 1
