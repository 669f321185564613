"""What the pages show of the journal of a run: versions, the funnel of data, and the life of a prompt or a group."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from astraflow_contrib_pages.journal.journal_figures import (
    HeldLeases,
    MeanRewards,
    ServiceHours,
)
from astraflow_contrib_pages.journal.journal_index import JournalIndex, Key, row_key, task_key
from astraflow_contrib_pages.metrics.step_columns import thinned
from astraflow_core.config.models import RunTable
from astraflow_core.errors import AstraFlowError, Refused
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    AttemptFailed,
    BatchRequested,
    Entry,
    Evicted,
    Leased,
    Overdue,
    PromptsConsumed,
    Pushed,
)
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES
from astraflow_runtime.dataflow.journal.tracing import Trace
from astraflow_runtime.dataflow.journal_reader import FOLDER

READ_S = 1.0
"""Longest that the journal is read for one answer; the next one reads on."""
LIFE_S = 5.0
"""Longest that it is looked through for one prompt or group."""
BUSY_S = 10.0
"""Longest that an answer waits for the others about the same journal."""
_NEWEST_NAMES = 200
_NEWEST_VERSIONS = 500


class AnnouncedVersions:
    """Listens for the versions that were announced: how many, and the newest."""

    def __init__(self) -> None:
        self.count = 0
        self.newest: deque[dict[str, Any]] = deque(maxlen=_NEWEST_VERSIONS)

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        if isinstance(entry, Announced):
            told = entry.message
            self.count += 1
            self.newest.append(
                {
                    "at_s": at_s,
                    "policy": told.policy,
                    "version": told.version,
                    "transport": told.transport,
                    "bytes": told.size,
                    "digest": told.digest,
                }
            )


class DataFunnel:
    """Listens for what happened to prompts, tasks, groups and rows: ``counts`` from the first stage to the last,
    ``refusals`` by stage, data policy and reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, str, str, str]] = Counter()
        self.names: dict[str, None] = {}

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        count = self.counts
        if isinstance(entry, PromptsConsumed):
            for turned in entry.turned:
                stage = "shadow admit" if turned.shadow else "admit"
                self.refusals[stage, "prompts", turned.by, turned.reason] += len(turned.prompts)
                if not turned.shadow:
                    count["prompts refused"] += len(turned.prompts)
            if entry.task:
                count["prompts admitted"] += 1
        elif isinstance(entry, Leased):
            count["leases"] += 1
        elif isinstance(entry, Overdue | AttemptFailed):
            count["attempts failed"] += 1
        elif isinstance(entry, Pushed):
            self._push(entry)
        elif isinstance(entry, BatchRequested):
            count["rows served"] += len(entry.arrivals)
            count["rows too stale"] += len(entry.dropped)
        elif isinstance(entry, Acknowledged):
            count["updates"] += 1
        elif isinstance(entry, Evicted):
            count["rows evicted"] += len(entry.arrivals)

    def _push(self, entry: Pushed) -> None:
        header, count = entry.header, self.counts
        self.names.pop(header.task, None)
        self.names[header.task] = None
        if len(self.names) > _NEWEST_NAMES:
            del self.names[next(iter(self.names))]
        if header.eval_set:
            count["groups of evaluations"] += 1
            return
        count["groups pushed"] += 1
        count["groups accepted" if entry.accepted else "groups rejected"] += 1
        for judged in entry.judged:
            count["rows accepted"] += len(judged.indexes)
            if judged.reason:
                by = judged.by or "the dataflow"
                self.refusals["accept", judged.policy, by, judged.reason] += 1
            for shadow, reason in judged.shadow_rejections:
                self.refusals["shadow accept", judged.policy, shadow, reason] += 1


class JournalViews:
    """What the journal of the run in ``directory`` says, read on from where the last look ended. ``sources``: the prompt
    sources with whose names the ids of prompts begin. Each answer has the ``share`` of the journal that is read: one of millions of
    entries takes several answers, each of which comes within :data:`READ_S` and says what is known so far."""

    def __init__(self, directory: Path, sources: Collection[str] = ()) -> None:
        self._index = JournalIndex(directory)
        self._log, self._sources = directory / FOLDER / ENTRIES, sources
        self._anew()

    def _anew(self) -> None:
        self._versions, self._funnel = AnnouncedVersions(), DataFunnel()
        self._rewards, self._hours = MeanRewards(self._sources), ServiceHours()
        self._leases = HeldLeases()

    @contextmanager
    def _followed(self) -> Iterator[float]:
        """The journal of now, and the share of it that is read; ``Refused`` (404) if there is none, or a damaged one, and (503) if
        others are asking for too long."""
        if not self._index.lock.acquire(timeout=BUSY_S):
            raise Refused(
                503, f"the journal is being read for others since {BUSY_S:g} s; ask again"
            )
        try:
            while not self._index.follow(
                self._versions, self._funnel, self._rewards, self._hours, self._leases, for_s=READ_S
            ):
                self._anew()
            yield self._index.share
        except AstraFlowError as error:
            raise error if isinstance(error, Refused) else Refused(404, str(error)) from error
        finally:
            self._index.lock.release()

    def versions(self) -> dict[str, Any]:
        """How many versions were announced, and the newest of them in order."""
        with self._followed() as share:
            newest = list(self._versions.newest)
            return {"share": share, "count": self._versions.count, "versions": newest}

    def funnel(self) -> dict[str, Any]:
        """Counts of each stage, and who refused how many for which reason."""
        with self._followed() as share:
            found = self._funnel
            return {
                "share": share,
                "counts": dict(found.counts),
                "refusals": [
                    {"stage": stage, "place": place, "by": by, "reason": reason, "count": count}
                    for (stage, place, by, reason), count in found.refusals.most_common()
                ],
                "groups": list(found.names)[::-1],
                "rewards": self._rewards.histograms(),
            }

    def hours(self, buckets: int, first: float, last: float) -> dict[str, Any]:
        """Kind of service → the ``hours`` that those of it have run, by step."""
        with self._followed() as share:
            return {"share": share, "hours": thinned(self._hours.arrays(), buckets, first, last)}

    def leases(self) -> dict[str, Any] | None:
        """The leases that are held now, if the run continues: the age of each is that at the newest entry and the time since that was
        written. ``None`` before the whole journal is read."""
        with self._followed() as share:
            if share < 1:
                return None
            return self._leases.listed(time.time() - self._log.stat().st_mtime)

    def life(self, config: dict[str, Any], subject: str, name: str) -> dict[str, Any]:
        """What became of a prompt or a group, as ``astraflow trace --json`` says, or no more than the share of the journal that is
        read; ``Refused`` (404) if the journal knows nothing of it, (503) if it takes too long to look."""
        default = RunTable.model_fields["task_attempts"].default
        attempts = config.get("run", {}).get("task_attempts", default)
        if subject not in ("prompt", "group"):
            raise Refused(404, f"there is no subject {subject[:100]!r}; there are prompt and group")
        with self._followed() as share:
            if share < 1:
                return {"share": share}
            try:
                trace = self._traced(attempts, subject, name)
            except TimeoutError as error:
                raise Refused(
                    503,
                    f"to look for {subject} {name[:200]!r} takes more than {LIFE_S:g} s in a journal of this size; use "
                    f"astraflow trace {subject} {name[:200]}",
                ) from error
        if not (trace.offers or trace.groups):
            raise Refused(404, f"no {subject} {name[:200]!r} came up in this run")
        return {
            "share": share,
            "offers": [asdict(offer) for offer in trace.offers],
            "groups": [asdict(story) for story in trace.groups.values()],
        }

    def _traced(self, attempts: int, subject: str, name: str) -> Trace:
        """Look for what is asked for, then for the tasks, rows and batches that come up with it, until no new ones do."""
        prompt, until = name if subject == "prompt" else "", time.monotonic() + LIFE_S
        keys = {task_key(name)} if subject == "group" else set[Key]()
        while True:
            trace = Trace(attempts, **{subject: name})
            self._index.feed(trace, keys, prompt, until)
            found = _named(trace) - keys
            if not found:
                return trace
            keys |= found


def _named(trace: Trace) -> set[Key]:
    """Tasks, rows and batches of the groups that a trace has found."""
    keys = set()
    for task, story in trace.groups.items():
        keys |= {task_key(each) for each in (task, story.completes, story.completed_by) if each}
        for share in story.shares:
            for row in share.rows:
                keys.add(row_key(share.policy, row.arrival))
                keys |= {task_key(use.batch) for use in (*row.batches, *row.lent)}
    return keys
