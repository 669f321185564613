"""Faults in runs of real processes: is anything lost, duplicated or torn, does the run continue, and how soon?

Each run has two policies, three RaaS with engine hosts, evaluation, checkpoints and recorded batches; the model is a
table, so that what is measured is the system. One RaaS is far: it reaches the dataflow over TLS. The versions of the
weights and the calls of that RaaS pass through links that the benchmark breaks (:mod:`bench.campaign.links`). By seed,
processes are killed and stopped, their files cannot grow, all of them stop as in a suspended machine (whose clocks then
have jumped), a checkpoint or the unflushed end of the journal is damaged, the whole run is killed and resumed, and a
flushed record of the journal is damaged, which a resumed run must refuse; a quarter of these come two at once. Between
them connections are cut, bits flipped and links stopped (:mod:`bench.campaign.faults` lists all kinds).

Violations are counted at the end of each run (:mod:`bench.campaign.verdict`): an engine that marks each token and a
trainer that checks the marks tell whether a row is the one that was sampled, and `astraflow replay` must come to the
same weights. ``stalls`` are faults after which not every service was back and every policy had not made two more updates
within 120 s. *Recovery* is the time until then, from the kill or the end of the fault; for a link, to the next good
answer over it. p99 of fewer than 100 faults is the slowest. ``bench/results/chaos/`` has each
campaign with all recoveries, and the figures are those of all campaigns there: a further one with ``CHAOS_SEED`` adds to them.
``others_cores``: how many cores other work on the machine took meanwhile, on average. ``CHAOS_S`` in the environment: seconds
of the campaign; ``CHAOS_SEED``: of its first run. ``python -m bench.campaign --seed N`` makes the faults of one run again.
"""

from __future__ import annotations

import os

from bench.campaign.campaign import campaign
from bench.campaign.kept import recorded, together

SECONDS, RUN_S, SEED = 1200.0, 200.0, 100
QUICK_S, QUICK_LINKS = 6.0, 12


def measure(quick: bool) -> dict[str, float]:
    """The campaign of about 20 minutes; quick: one run with a few faults."""
    if quick:
        return campaign(QUICK_S, SEED, QUICK_S, QUICK_LINKS).figures()
    seconds = float(os.environ.get("CHAOS_S", SECONDS))
    seed = int(os.environ.get("CHAOS_SEED", SEED))
    recorded(seed, lambda: campaign(seconds, seed, RUN_S))
    return together()
