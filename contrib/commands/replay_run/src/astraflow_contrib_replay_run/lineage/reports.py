"""The answers of ``astraflow lineage`` as plain values, the same for JSON and for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from astraflow_contrib_replay_run.lineage.index import LineageIndex, PushedGroup, Row, Update
from astraflow_core.installed.provenance import read_plugins
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_wire.groups import ReceivedGroup

_SHARED = ("workflow", "reward", "prompts")


class LineageReports:
    """Reports about the run in ``directory``, whose journal ``index`` has read."""

    def __init__(self, directory: Path, reader: JournalReader, index: LineageIndex) -> None:
        self._directory, self._reader, self._index = directory, reader, index
        self._bodies: dict[str, ReceivedGroup | None] = {}

    def step(self, update: Update) -> dict[str, Any]:
        """What made an update: its rows, by group."""
        index = self._index
        groups: dict[str, list[Row]] = {}
        for row in update.rows:
            groups.setdefault(index.of_row[row][0], []).append(row)
        return {
            **self._update(update),
            "metrics": update.metrics,
            "plugins": self.plugins(update.policy),
            "data_policy_swaps": [
                {"at_s": at, "place": swap.message.place, "name": swap.message.name}
                for at, swap in index.swaps
                if at <= update.served_s
            ],
            "groups": [
                {
                    **self.group(task, index.groups[task]),
                    "rows": [self.row(row, update) for row in rows],
                }
                for task, rows in groups.items()
            ],
        }

    def version(self, policy: str, number: int) -> dict[str, Any]:
        """The update that made a version, and the updates that trained on rows that it sampled."""
        index = self._index
        found = index.versions[policy, number]
        before = max(
            (v.updates for (p, n), v in index.versions.items() if p == policy and n < number),
            default=0,
        )
        made = [
            index.updates[policy, step]
            for step in range(before + 1, found.updates + 1)
            if (policy, step) in index.updates
        ]
        sampled = [
            row
            for row, (task, at) in index.of_row.items()
            if row[0] == policy
            and index.groups[task].entry.header.sequences[at].min_version == number
        ]
        return {
            "policy": policy,
            "version": number,
            "announced_s": found.announced_s,
            "digest": found.digest,
            "bytes": found.size,
            "updates": found.updates,
            "made_by": [self.step(update) for update in made],
            "sampled_rows": len(sampled),
            "trained_in": self._uses(sampled),
        }

    def subject(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """What rows changed: the updates that were made with them."""
        return self._uses(rows)

    def group(self, task: str, group: PushedGroup) -> dict[str, Any]:
        """How a group came to be, and what data policies said of it."""
        header = group.entry.header
        raas = self._index.raas.get(header.raas)
        return {
            "group": task,
            "prompt": header.prompt_id,
            "raas": header.raas,
            "host": raas.host if raas else None,
            "leased_s": group.leased_s,
            "pushed_s": group.pushed_s,
            "newest_versions": group.newest,
            "trajectories": header.trajectories,
            "accepted": group.entry.accepted,
            "verdicts": [
                {
                    "policy": judged.policy,
                    "kept": len(judged.indexes),
                    "by": judged.by or None,
                    "reason": judged.reason or None,
                    "shadow_rejections": [list(each) for each in judged.shadow_rejections],
                }
                for judged in group.entry.judged
            ],
        }

    def row(self, row: Row, update: Update | None = None) -> dict[str, Any]:
        """A row: ``versions`` are runs of [version that sampled, tokens], ``None`` if its group is no longer in the
        journal."""
        found = self._index.row_of(row)
        assert found is not None
        group, index = found
        header = group.entry.header.sequences[index]
        told: dict[str, Any] = {
            "row": f"{row[0]}:{row[1]}",
            "sequence": index,
            "reward": header.reward,
            "tokens": header.length,
            "trained_tokens": group.entry.trained[index],
            "min_version": header.min_version,
            "versions": self._versions(group, index),
        }
        if update is not None:
            told["borrowed"] = row in update.borrowed
            if row not in update.borrowed:
                told["staleness"] = update.updates - header.min_version
        return told

    def plugins(self, policy: str) -> dict[str, str]:
        """Place in the configuration → what provided it when the run began, with its version."""
        told = {}
        for entry in read_plugins(self._directory):
            of = f"{entry['distribution'] or entry['plugin']} {entry['version']}".strip()
            for place, name in entry["components"].items():
                root = place.split(".")[0]
                if place.startswith(f"policies.{policy}.") or root in _SHARED:
                    told[place] = f"{name} ({of})"
        return dict(sorted(told.items()))

    def _update(self, update: Update) -> dict[str, Any]:
        weights = self._index.versions.get((update.policy, update.version or -1))
        published = weights is not None and weights.updates == update.step
        return {
            "policy": update.policy,
            "step": update.step,
            "batch": update.batch,
            "updates_version": update.updates,
            "published_version": update.version if published else None,
            "weights": weights.digest if weights and published else None,
            "served_s": update.served_s,
            "made_s": update.made_s,
        }

    def _uses(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        wanted = set(rows)
        uses = []
        for update in self._index.updates.values():
            own = [row for row in update.rows if row in wanted]
            if own:
                tokens, every = self._tokens(own), self._tokens(update.rows)
                uses.append(
                    {
                        **self._update(update),
                        "rows": [f"{policy}:{arrival}" for policy, arrival in own],
                        "trained_tokens": tokens,
                        "share_of_trained_tokens": tokens / every if every else 0.0,
                    }
                )
        return uses

    def _tokens(self, rows: Iterable[Row]) -> int:
        total = 0
        for row in rows:
            task, index = self._index.of_row[row]
            total += self._index.groups[task].entry.trained[index]
        return total

    def _versions(self, group: PushedGroup, index: int) -> list[list[int]] | None:
        task = group.entry.header.task
        if task not in self._bodies:
            place = group.entry.body
            there = place is not None and self._reader.has_body(place)
            self._bodies[task] = (
                ReceivedGroup(self._reader.body(place)) if there and place is not None else None
            )
        received = self._bodies[task]
        if received is None:
            return None
        start, end = int(received.offsets[index]), int(received.offsets[index + 1])
        sampled = received.versions[start:end]
        runs = groupby(int(version) for version in sampled[sampled >= 0])
        return [[version, sum(1 for _ in run)] for version, run in runs]


def counted(values: Iterable[object]) -> Mapping[str, int]:
    """How often each value occurs, in the order in which it does first."""
    found: dict[str, int] = {}
    for value in values:
        found[str(value)] = found.get(str(value), 0) + 1
    return found
