"""What the journal of a run tells the pages: versions, the funnel of data, and the life of a prompt or a group."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from astraflow_runtime.dataflow.journal.tracing import Trace
from astraflow_runtime.dataflow.journal_reader import JournalListener, JournalReader

_NEWEST_NAMES = 200


class AnnouncedVersions:
    """Listens for the versions that were announced."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def hear(self, at_s: float, entry: Entry) -> None:
        """Take note of an entry."""
        if isinstance(entry, Announced):
            told = entry.message
            self.found.append(
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
    """Listens for what became of prompts, tasks, groups and rows: ``counts`` from the first stage to the last,
    ``refusals`` by stage, data policy and reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[tuple[str, str, str, str]] = Counter()
        self.names: dict[str, None] = {}

    def hear(self, at_s: float, entry: Entry) -> None:
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


def versions(directory: Path) -> list[dict[str, Any]]:
    """Every version that was announced, in order; none without a journal."""
    listener = AnnouncedVersions()
    _tell(directory, listener)
    return listener.found


def funnel(directory: Path) -> dict[str, Any]:
    """Counts of each stage, and who refused how many for which reason."""
    listener = DataFunnel()
    _tell(directory, listener)
    return {
        "counts": dict(listener.counts),
        "refusals": [
            {"stage": stage, "place": place, "by": by, "reason": reason, "count": count}
            for (stage, place, by, reason), count in listener.refusals.most_common()
        ],
        "groups": list(listener.names)[::-1],
    }


def life(directory: Path, config: dict[str, Any], subject: str, name: str) -> dict[str, Any]:
    """What became of a prompt or a group, as ``astraflow trace --json`` says; ``Refused`` (404) if the journal knows nothing
    of it."""
    attempts = config.get("run", {}).get(
        "task_attempts", RunTable.model_fields["task_attempts"].default
    )
    if subject not in ("prompt", "group"):
        raise Refused(404, f"there is no subject {subject[:100]!r}; there are prompt and group")
    trace = Trace(attempts, **{subject: name})
    _tell(directory, trace)
    if not (trace.offers or trace.groups):
        raise Refused(404, f"no {subject} {name[:200]!r} came up in this run")
    return {
        "offers": [asdict(offer) for offer in trace.offers],
        "groups": [asdict(story) for story in trace.groups.values()],
    }


def _tell(directory: Path, listener: JournalListener) -> None:
    try:
        JournalReader.of_run(directory).tell(listener)
    except AstraFlowError as error:
        raise Refused(404, str(error)) from error
