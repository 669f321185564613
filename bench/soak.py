"""Do memory, open files and latency of a dataflow stay flat over many groups, and how fast does it restart afterwards?

Eight clients with the protocol of RaaS push groups to a dataflow process, and a trainer takes batches, publishes and
checkpoints: each group has a prompt of its own and two rows of 16 tokens, each row names itself, and each must be trained
once (`lost`, `doubled`; up to two batches may be `waiting`). Windows follow one another; in the first half of each the trainer
is the slower side (the pool waits for leases), in the other half the pool. Then the dataflow is killed and started on its journal:
`restart_s` is the wall time until it listens, start of the interpreter included. `growth_kb_per_1000` is the slope of resident
memory over groups after the first fifth (least squares), `files` the open files at the end less those after the first window,
`push_p99_first_ms` and `push_p99_last_ms` the p99 of pushes in the second and in the last fifth; clients and dataflow share the
cores with all else that runs. Fields `long_`: the same of another dataflow with a thousandth of the groups, at least 4,096, of
rows of 32,768 tokens.

``SOAK_GROUPS`` and ``SOAK_MINUTES`` in the environment: the groups that are tried (10⁶) and the minutes after which the first
part ends before (60), a tenth of that of the other part; ``reached`` is how many groups there were. The groups are spread over the
minutes: the slower side waits until so much time has passed, so that a fast machine soaks as long as a slow one.
"""

from __future__ import annotations

import asyncio
import os

from bench.support.soaking import LENGTH, LONG, soaked

GROUPS, MINUTES, QUICK_GROUPS, QUICK_MINUTES = 1_000_000, 60.0, 2000, 0.25
LEAST_LONG = 4096


def measure(quick: bool) -> dict[str, float]:
    """Short rows, then long ones."""
    groups = QUICK_GROUPS if quick else int(os.environ.get("SOAK_GROUPS", GROUPS))
    minutes = QUICK_MINUTES if quick else float(os.environ.get("SOAK_MINUTES", MINUTES))
    found = asyncio.run(soaked(groups, LENGTH, 60 * minutes))
    long = asyncio.run(soaked(max(LEAST_LONG, groups // 1000), LONG, 6 * minutes))
    return found | {f"long_{name}": value for name, value in long.items()}
