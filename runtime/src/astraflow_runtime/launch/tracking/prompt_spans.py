"""The spans of prompts, made from the journal's entries of each group: only the episodes are measured for them.

A trace is one group: ``prompt`` is its root. ``lease`` spans its time at a RaaS, with an ``episode`` for each trajectory, and in
it the requests to engines (``generate``) and the ``reward``. ``accept`` is its way into the buffer, ``buffer`` the wait for
a batch, ``train`` the update with that batch, and in it ``update`` (the trainer's work) and ``publish``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any

import xxhash

from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
    Evicted,
    PromptsConsumed,
    Pushed,
)
from astraflow_runtime.dataflow.lease_history import EndedLease, LeaseHistory
from astraflow_runtime.telemetry.traced_prompts import is_traced
from astraflow_trackers.records import SpanRecord

MOST_OPEN = 4096
"""Traces that are followed at once; the oldest are given up for newer ones."""
DATAFLOW = "dataflow"


@dataclass(slots=True)
class OpenTrace:
    """A group that is followed. Times are seconds of the run. ``rows``: (policy, arrival) of rows that may be trained yet."""

    task: str
    trace: str
    since_s: float
    attributes: dict[str, Any]
    spans: list[SpanRecord] = field(default_factory=list)
    rows: set[tuple[str, int]] = field(default_factory=set)
    pushed_s: float = 0.0
    leases: int = 0

    def id_of(self, *path: object) -> str:
        """The id of a span of this trace."""
        return xxhash.xxh3_64_hexdigest("/".join(map(str, (self.trace, *path))).encode())

    def add(
        self,
        path: tuple[object, ...],
        service: str,
        start_s: float,
        end_s: float,
        attributes: dict[str, Any],
        error: str = "",
    ) -> None:
        """The span at ``path``, whose last part is its name with a number perhaps; its parent is at the path before."""
        parent = self.id_of(*path[:-1]) if len(path) > 1 else self.id_of()
        name = str(path[-1]).partition(" ")[0]
        self.spans.append(
            SpanRecord(
                trace=self.trace,
                id=self.id_of(*path),
                parent=parent,
                name=name,
                service=service,
                start_s=start_s,
                end_s=max(start_s, end_s),
                error=error,
                attributes=attributes,
            )
        )


class PromptSpans:
    """Listens to a journal; :attr:`finished` gets the traces that are whole. ``run``: what makes the ids of this run's traces
    differ from those of others."""

    def __init__(self, run: str, share: float) -> None:
        self._run, self._share = run, share
        self._open: dict[str, OpenTrace] = {}
        self._leases = LeaseHistory()
        self._waiting: dict[tuple[str, int], str] = {}
        self._served: dict[str, tuple[float, list[tuple[str, int]]]] = {}
        self._announced: dict[tuple[str, int], float] = {}
        self._at = 0.0
        self.finished: list[list[SpanRecord]] = []

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        self._at = at_s
        for ended in self._leases.take(at_s, entry):
            self._lease_ended(ended, isinstance(entry, Pushed))
        self._take(entry)

    @singledispatchmethod
    def _take(self, entry: Entry) -> None:
        """Entries that say nothing of groups."""

    @_take.register
    def _(self, entry: PromptsConsumed) -> None:
        if is_traced(entry.task, self._share):
            self._begin(entry.task, entry.prompt)

    def _begin(self, task: str, prompt: str) -> OpenTrace:
        trace = xxhash.xxh3_128_hexdigest(f"{self._run}/{task}".encode())
        attributes = {"astraflow.run": self._run, "astraflow.group": task, "prompt.id": prompt}
        self._open[task] = OpenTrace(task, trace, self._at, attributes)
        if len(self._open) > MOST_OPEN:
            self._forget(next(iter(self._open)))
        return self._open[task]

    def _lease_ended(self, ended: EndedLease, pushed: bool) -> None:
        lease, opened = ended.lease, self._open.get(ended.lease.task)
        if opened is None:
            return
        opened.leases += 1
        path, facts = (f"lease {opened.leases}",), {"astraflow.raas": lease.raas}
        opened.add(path, DATAFLOW, lease.since_s, self._at, facts, ended.reason)
        if not ended.returned and not ended.other and not pushed:
            self._end(opened, ended.reason)

    @_take.register
    def _(self, entry: Pushed) -> None:
        opened = self._open.get(entry.header.task)
        if opened is None:
            return
        opened.pushed_s = self._at
        self._episodes(opened, entry)
        for judged in entry.judged:
            facts: dict[str, Any] = {
                "astraflow.policy": judged.policy,
                "astraflow.rows": len(judged.indexes),
            }
            if judged.reason:
                facts["astraflow.rejected"] = judged.reason
            opened.add((f"accept {judged.policy}",), DATAFLOW, self._at, self._at, facts)
            opened.rows |= {(judged.policy, judged.first + i) for i in range(len(judged.indexes))}
        self._waiting |= dict.fromkeys(opened.rows, opened.task)
        if not opened.rows:
            self._end(opened)

    def _episodes(self, opened: OpenTrace, entry: Pushed) -> None:
        """What the RaaS said, in terms of the time at which its push came in."""
        header = entry.header
        lease = f"lease {opened.leases}"
        for number, span in enumerate(header.spans):
            start = self._at - span.ago_s
            episode = f"episode {span.episode}"
            inner = (f"{span.name} {number}",) if span.name != "episode" else ()
            service = header.raas if span.name != "generate" else f"engine-{span.policy}"
            facts = {"astraflow.policy": span.policy} if span.policy else {}
            opened.add((lease, episode, *inner), service, start, start + span.took_s, facts)

    @_take.register
    def _(self, entry: BatchRequested) -> None:
        policy = entry.message.policy
        self._drop(policy, entry.dropped)
        own = [(policy, arrival) for arrival in entry.arrivals]
        if traced := [row for row in own if row in self._waiting]:
            self._served[entry.batch] = (self._at, traced)

    @_take.register
    def _(self, entry: Announced) -> None:
        policy, version = entry.message.policy, entry.message.version
        self._announced[policy, version] = self._at
        for old in [k for k in self._announced if k[0] == policy and k[1] < version - 1]:
            del self._announced[old]

    @_take.register
    def _(self, entry: Acknowledged) -> None:
        message = entry.message
        served_s, rows = self._served.pop(message.batch, (self._at, []))
        tasks = dict.fromkeys(self._waiting[row] for row in rows if row in self._waiting)
        for task in tasks:
            opened = self._open[task]
            own = [row for row in rows if row in opened.rows]
            self._trained(opened, entry, served_s, len(own))
            for row in own:
                self._settle(opened, row)

    def _trained(self, opened: OpenTrace, entry: Acknowledged, served_s: float, rows: int) -> None:
        message = entry.message
        service, metrics = f"trainer-{message.policy}", message.metrics
        facts: dict[str, Any] = {
            "astraflow.batch": message.batch,
            "astraflow.policy": message.policy,
        }
        opened.add((f"buffer {message.batch}",), DATAFLOW, opened.pushed_s, served_s, facts)
        train = f"train {message.batch}"
        opened.add((train,), service, served_s, self._at, {**facts, "astraflow.rows": rows})
        ended = self._at
        published = self._announced.get((message.policy, message.version), -1.0)
        if published >= served_s:
            ended = max(served_s, published - float(metrics.get("publish_s", 0.0)))
            version = {"astraflow.version": message.version}
            opened.add((train, "publish"), service, ended, published, version)
        took = float(metrics.get("update_s", ended)) + float(metrics.get("prepare_s", 0.0))
        opened.add((train, "update"), service, max(served_s, ended - took), ended, {})

    @_take.register
    def _(self, entry: Evicted) -> None:
        self._drop(entry.policy, entry.arrivals)

    def _drop(self, policy: str, arrivals: list[int]) -> None:
        """Rows that are not trained on."""
        for arrival in arrivals:
            task = self._waiting.get((policy, arrival))
            if task is not None:
                self._settle(self._open[task], (policy, arrival))

    def _settle(self, opened: OpenTrace, row: tuple[str, int]) -> None:
        opened.rows.discard(row)
        self._waiting.pop(row, None)
        if not opened.rows:
            self._end(opened)

    def _end(self, opened: OpenTrace, error: str = "") -> None:
        """It is whole: nothing more will happen to it."""
        self._forget(opened.task)
        root = SpanRecord(
            trace=opened.trace,
            id=opened.id_of(),
            parent="",
            name="prompt",
            service=DATAFLOW,
            start_s=opened.since_s,
            end_s=self._at,
            error=error,
            attributes=opened.attributes,
        )
        self.finished.append([root, *opened.spans])

    def _forget(self, task: str) -> None:
        for row in self._open.pop(task).rows:
            self._waiting.pop(row, None)

    def take_finished(self) -> Iterator[list[SpanRecord]]:
        """The traces that are whole, each once."""
        finished, self.finished = self.finished, []
        yield from finished
