"""Faults in runs of real processes: is anything lost, doubled or torn, does the run go on, and how soon?

Each run has two policies, three RaaS with engine hosts, evaluation, checkpoints and recorded batches; the model is a
table, so that what is measured is the system. One RaaS is far: it reaches the dataflow over TLS. The versions of the
weights and the calls of that RaaS pass through links that the benchmark breaks (:mod:`bench.campaign.links`). By seed,
processes are killed and stopped, their files cannot grow, all of them stop as in a suspended machine (whose clocks then
have jumped), a checkpoint or the unflushed end of the journal is damaged, the whole run is killed and resumed, and a
flushed record of the journal is damaged, which a resumed run must refuse; a quarter of these come two at once. Between
them connections are cut, bits flipped and links stopped (:mod:`bench.campaign.faults` lists all kinds).

What must not be is counted at the end of each run (:mod:`bench.campaign.verdict`): an engine that marks each token and a
trainer that checks the marks tell whether a row is the one that was sampled, and `astraflow replay` must come to the
same weights. ``stalls`` are faults after which not every service was back and every policy had not made two more updates
within 120 s. *Recovery* is the time until then, from the kill or the end of the fault; for a link, to the next good
answer over it. p99 of fewer than 100 faults is the slowest. All recoveries are in ``bench/results/chaos/``.
``others_cores``: how many cores other work on the machine took meanwhile, on average. ``CHAOS_S`` in the environment: seconds
of the campaign. ``python -m bench.campaign --seed N`` makes the faults of one run again.
"""

from __future__ import annotations

import json
import os
import time

from bench.__main__ import RESULTS
from bench.campaign.campaign import campaign
from bench.support import trees

SECONDS, RUN_S, SEED = 1200.0, 200.0, 100
QUICK_S, QUICK_LINKS = 6.0, 12


def measure(quick: bool) -> dict[str, float]:
    """The campaign of about 20 minutes; quick: one run with a few faults."""
    if quick:
        return campaign(QUICK_S, SEED, QUICK_S, QUICK_LINKS).figures()
    began, cpu, own = time.monotonic(), trees.machine_cpu_s(), _children_s()
    record = campaign(float(os.environ.get("CHAOS_S", SECONDS)), SEED, RUN_S)
    wall, own = time.monotonic() - began, _children_s() - own
    folder = RESULTS / "chaos"
    folder.mkdir(parents=True, exist_ok=True)
    seconds = {
        kind: sorted(round(each, 3) for each in found)
        for kind, found in sorted(record.recoveries.items())
    }
    (folder / "recoveries.json").write_text(json.dumps(seconds, indent=1) + "\n")
    (folder / "troubles.txt").write_text("\n".join(record.troubles or ["none"]) + "\n")
    others = trees.machine_cpu_s() - cpu - own
    return {**record.figures(), "wall_s": wall, "cpu_s": own, "others_cores": others / wall}


def _children_s() -> float:
    """CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])
