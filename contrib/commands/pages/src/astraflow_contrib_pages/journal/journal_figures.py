"""Figures that the journal of a run holds and no line of metrics has: rewards of single groups, hours of services, leases."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection
from typing import Any

import numpy as np

from astraflow_contrib_pages.journal.journal_index import task_key
from astraflow_contrib_pages.metrics.downsampling import Floats
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Entry,
    Pushed,
    RaasGone,
    RaasLeft,
    RaasRegistration,
    Released,
    Resumed,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.lease_history import LeaseHistory

BARS = 20
NEWEST_GROUPS = 500
MOST_LEASES = 300
_MOST_SOURCES = 32
_MOST_GROUPS = 4 << 20
"""Of a policy and a source; groups after that count among the newest only."""


class MeanRewards:
    """Listens for the mean reward of each group of training, by policy and prompt source. ``sources``: names with which the
    ids of prompts begin."""

    def __init__(self, sources: Collection[str] = ()) -> None:
        self._sources = frozenset(sources)
        self._means: dict[str, dict[str, array[float]]] = {}
        self._newest: dict[str, deque[tuple[str, float]]] = {}

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        if not isinstance(entry, Pushed) or entry.header.eval_set or entry.refill:
            return
        rewards: dict[str, list[float]] = {}
        for sequence in entry.header.sequences:
            rewards.setdefault(sequence.policy, []).append(sequence.reward)
        source = entry.header.prompt_id.partition("/")[0]
        source = source if source in self._sources else ""
        for policy, given in rewards.items():
            mean = sum(given) / len(given)
            means = self._means.setdefault(policy, {})
            if source not in means and len(means) >= _MOST_SOURCES:
                source = "other"
            own = means.setdefault(source, array("d"))
            if len(own) < _MOST_GROUPS:
                own.append(mean)
            newest = self._newest.setdefault(policy, deque(maxlen=NEWEST_GROUPS))
            newest.append((source, mean))

    def histograms(self) -> dict[str, dict[str, Any]]:
        """Policy → ``edges`` of :data:`BARS` bars, and for each of its ``sources`` the number of groups in each bar: of ``all``
        groups and of the ``newest`` of the policy."""
        found = {}
        for policy, means in self._means.items():
            low = min(min(each) for each in means.values())
            high = max(max(each) for each in means.values())
            if low >= 0 and high <= 1:
                low, high = 0.0, 1.0
            elif low == high:
                low, high = low - 0.5, high + 0.5
            edges = np.linspace(low, high, BARS + 1)
            newest = self._newest[policy]
            found[policy] = {
                "edges": edges.tolist(),
                "sources": [
                    {
                        "source": source,
                        "groups": len(own),
                        "mean": float(np.mean(own)),
                        "all": np.histogram(own, edges)[0].tolist(),
                        "newest": np.histogram([m for s, m in newest if s == source], edges)[0].tolist(),
                    }
                    for source, own in sorted(means.items())
                ],
            }  # fmt: skip
        return found


class ServiceHours:
    """Listens for how long RaaS and trainers were there: the hours of each kind together, at each step of a policy that is
    ahead of the others."""

    def __init__(self) -> None:
        self._here: dict[str, set[str]] = {"RaaS": set(), "trainers": set()}
        self._hours = dict.fromkeys(self._here, 0.0)
        self._at = 0.0
        self._steps = array("d")
        self._points = {kind: array("d") for kind in self._here}

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        if isinstance(entry, Resumed):  # no process was running since the previous entry
            for names in self._here.values():
                names.clear()
        for kind, names in self._here.items():
            self._hours[kind] += len(names) * max(0.0, at_s - self._at) / 3600
        self._at = max(self._at, at_s)
        if isinstance(entry, RaasRegistration):
            self._here["RaaS"].add(entry.message.raas)
        elif isinstance(entry, RaasLeft):
            self._here["RaaS"].discard(entry.message.raas)
        elif isinstance(entry, RaasGone):
            self._here["RaaS"].discard(entry.raas)
        elif isinstance(entry, TrainerRegistration):
            self._here["trainers"].add(entry.message.policy)
        elif isinstance(entry, Released) and entry.message.last:
            self._here["trainers"].discard(entry.message.policy)
        elif isinstance(entry, Acknowledged):
            step = task_key(entry.message.batch)[1] + 1  # batches are numbered from 0
            if not self._steps or step > self._steps[-1]:
                self._steps.append(step)
                for kind, hours in self._hours.items():
                    self._points[kind].append(hours)

    def arrays(self) -> dict[str, tuple[Floats, Floats]]:
        """Kind of service → steps, and hours since the run began; empty before the first step."""
        if not self._steps:
            return {}
        steps = np.array(self._steps)
        return {kind: (steps, np.array(points)) for kind, points in self._points.items()}


class HeldLeases:
    """Listens for which tasks are under a lease, and since when."""

    def __init__(self) -> None:
        self._history = LeaseHistory()
        self.newest_s = 0.0

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        self.newest_s = max(self.newest_s, at_s)
        self._history.take(at_s, entry)

    def listed(self, since_newest_s: float) -> dict[str, Any]:
        """``count`` of all leases, and the oldest :data:`MOST_LEASES` with their age, ``since_newest_s`` after the newest
        entry."""
        held = sorted(self._history.all, key=lambda lease: (lease.since_s, lease.task))
        now = self.newest_s + max(0.0, since_newest_s)
        second = {id(lease) for lease in self._history.second.values()}
        return {
            "count": len(held),
            "oldest": [
                {
                    "task": lease.task,
                    "raas": lease.raas,
                    "age_s": now - lease.since_s,
                    "second": id(lease) in second,
                }
                for lease in held[:MOST_LEASES]
            ],
        }
