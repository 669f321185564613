"""A campaign: consecutive runs, each with faults drawn by its seed, and their results."""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from astraflow_core.errors import DeadlineExceeded
from bench.campaign.faults import LINK_FAULTS, PROCESS_FAULTS
from bench.campaign.job import Job, RunEnded
from bench.campaign.links import Link
from bench.campaign.verdict import Verdict, judge

LAST_S = 120.0
LINK_FAULTS_IN_TURN = 40
TWO, TWO_AT_ONCE = "two_at_once", 0.25


@dataclass
class Record:
    """The faults of a campaign and their effects. ``recoveries``: kind → seconds; ``stalls``: faults after which the
    run ended, or did not recover completely within ``LAST_S``; ``troubles``: the text of each violation."""

    faults: Counter[str] = field(default_factory=Counter)
    recoveries: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stalls: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    troubles: list[str] = field(default_factory=list)
    runs: int = 0

    def figures(self) -> dict[str, float]:
        """The fields of the benchmark."""
        every = [seconds for found in self.recoveries.values() for seconds in found]
        fields: dict[str, float] = {
            "faults": self.faults.total(),
            **vars(self.verdict),
            "stalls": self.stalls,
            "recovery_p50_s": statistics.median(every),
            "recovery_p99_s": percentile(every, 0.99),
            "runs": self.runs,
        }
        for kind, found in sorted(self.recoveries.items()):
            fields |= {
                f"{kind}_count": len(found),
                f"{kind}_p50_s": statistics.median(found),
                f"{kind}_p99_s": percentile(found, 0.99),
            }
        return fields


def percentile(values: list[float], share: float) -> float:
    """The least value that at least this share of ``values`` does not exceed; of few values the largest."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def campaign(
    seconds: float, seed: int, run_s: float, links_in_turn: int = LINK_FAULTS_IN_TURN
) -> Record:
    """Runs of about ``run_s`` until ``seconds`` have passed; the seed of the first is ``seed``."""
    record, end = Record(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        one_run(record, seed + record.runs, min(run_s, left), links_in_turn)
        record.runs += 1
    return record


def one_run(record: Record, seed: int, seconds: float, links_in_turn: int) -> None:
    """A run under faults for about ``seconds``, and its end."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), seed) as job:
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                process_faults(record, job, chance)
                for _ in range(links_in_turn):
                    link_fault(record, job, chance)
            found = judge(job)
        except (DeadlineExceeded, RunEnded) as error:
            record.stalls += 1
            tell(record, f"seed {seed}: {error}\n{job.last_words()}")
            return
        record.verdict.add(found)
        if any(vars(found).values()):
            tell(record, f"seed {seed}: {found}")
        print(f"chaos: seed {seed}: {record.faults.total()} faults, {found}", file=sys.stderr)


def process_faults(record: Record, job: Job, chance: random.Random) -> None:
    """One fault, or two at once, and the recovery."""
    kinds = list(PROCESS_FAULTS)
    shares = [PROCESS_FAULTS[kind][1] for kind in kinds]
    drawn = chance.choices(kinds, shares, k=2 if chance.random() < TWO_AT_ONCE else 1)
    for kind in drawn:
        print(f"chaos: {kind}", file=sys.stderr)
        PROCESS_FAULTS[kind][0](job, chance)
        record.faults[kind] += 1
    since = time.time()
    took = job.progress(since, LAST_S) - since
    record.recoveries[drawn[0] if len(drawn) == 1 else TWO].append(took)
    status = job.status()
    if status is not None and not status["invariants_ok"]:
        record.verdict.unbalanced += 1
        tell(record, f"after {drawn} the accounts do not add up: {status['policies']}")


def link_fault(record: Record, job: Job, chance: random.Random) -> None:
    """One fault of a link, and the seconds to the next successful reply over that link."""
    names = list(LINK_FAULTS)
    name = chance.choices(names, [LINK_FAULTS[each][1] for each in names])[0]
    door = chance.random() < 0.5
    link, seen = (job.door, job.proxy) if door else (chosen := chance.choice(job.weights), chosen)
    kind = f"{name}_{'dataflow' if door else 'weights'}"
    LINK_FAULTS[name][0](job, link, chance)
    record.faults[kind] += 1
    since = time.time()
    answered = job.wait(lambda: answered_after(seen, since), f"an answer after {kind}", LAST_S)
    record.recoveries[kind].append(answered - since)


def answered_after(link: Link, since: float) -> float | None:
    """The time at which the first successful reply over the link after ``since`` was seen."""
    return link.answered if link.answered > since else None


def tell(record: Record, text: str) -> None:
    """Record and print a violation."""
    record.troubles.append(text)
    print(f"chaos: {text}", file=sys.stderr)
