"""The invariants that must hold at the end of a run after any faults."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.campaign.job import MAX_STALENESS, POLICIES, Job
from bench.campaign.marks import given_file

REPLAYED = "bit for bit"


@dataclass
class Verdict:
    """Counts of violations, all 0 for a correct run. ``lost``: rows, tasks and updates; ``doubled``: rows trained in
    two updates, and updates made twice; ``torn``: rows that changed on their way, or between two servings of a batch;
    ``disordered``: versions that went back; ``stale``: updates with tokens over the bound; ``unbalanced``: accounts that
    do not add up; ``left``: processes; ``unrepeatable``: 1 if `astraflow replay` did not come to the same weights."""

    lost: int = 0
    doubled: int = 0
    torn: int = 0
    disordered: int = 0
    stale: int = 0
    unbalanced: int = 0
    left: int = 0
    unrepeatable: int = 0

    def add(self, other: Verdict) -> None:
        """Sum, field by field."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def judge(job: Job) -> Verdict:
    """Stop the run, and check the files that it left."""
    verdict = Verdict()
    balance = job.balance()
    accounts = [balance["tasks"], balance["eval_tasks"], *balance["rows"].values()]
    verdict.lost += sum(abs(account["lost"]) for account in accounts)
    summary = job.stop()
    verdict.lost += abs(summary["lost"])
    status = json.loads((job.directory / "status.json").read_text())
    verdict.unbalanced += not status["invariants_ok"]
    verdict.left += job.left()
    for policy in POLICIES:
        verdict.add(of_updates(job.made(policy)))
        verdict.add(of_notes(given_file(job.directory, policy)))
    replayed = job.replayed()
    text = replayed.stdout
    verdict.unrepeatable += replayed.returncode != 0 or text.count(REPLAYED) != len(POLICIES)
    return verdict


def of_updates(lines: list[dict[str, Any]]) -> Verdict:
    """Of the updates that ``metrics.jsonl`` holds of a policy."""
    once = Counter(line["step"] for line in lines if not line["again"])
    versions = [line["version"] for line in lines]
    return Verdict(
        lost=max(once, default=0) - len(once),
        doubled=once.total() - len(once),
        disordered=sum(earlier >= later for earlier, later in pairwise(versions)),
        stale=sum(line["staleness_max"] > MAX_STALENESS for line in lines),
    )


def of_notes(file: Path) -> Verdict:
    """Of the batches that the trainer of a policy noted."""
    verdict = Verdict()
    batches: dict[int, list[str]] = {}
    power_lost = False
    for text in file.read_text().splitlines():
        note = json.loads(text)
        if "lost_power" in note:
            power_lost = True
            continue
        number = int(note["batch"].rpartition("-")[2])
        if power_lost:  # from where the run goes on, batches may be made of other rows
            batches = {earlier: rows for earlier, rows in batches.items() if earlier < number}
            power_lost = False
        verdict.torn += note["torn"]
        before = batches.setdefault(number, note["rows"])
        verdict.torn += sum(a != b for a, b in zip(before, note["rows"], strict=True))
    trained = Counter(row.rpartition("/")[0] for rows in batches.values() for row in rows)
    verdict.doubled += trained.total() - len(trained)
    return verdict
