"""The same model published by 1, 2 and 4 ranks: each its own blocks, or rank 0 what it gathers.

Ranks and the receiver are processes, on loopback, and hold the rows of matrices of 16 MiB as FSDP does; both ways are
measured in turn. ``MODE_wall_s_N``: from the order to publish until the receiver has the verified version of N ranks,
``MODE_publish_s_N`` until the last rank has published; ``MODE_cpu_s_per_gb_N``: CPU seconds of all ranks and the receiver;
``MODE_between_mb_N``: what ranks send each other for one version; ``MODE_peak_mb_N``: the most memory that any rank had
beyond its rows, while two versions at most are held. ``wall_over_gathered_N`` and ``cpu_over_gathered_N``: medians of the
ratios of interleaved pairs, sharded over gathered. Gathering is a plain copy of each rank's rows to rank 0, the least
that it can be: an all-gather of torch brings every tensor to every rank.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from bench.co_located import Mapper
from bench.support.sharded_rank import Group
from bench.support.timing import interleaved, ratio

RANKS = (1, 2, 4)
MATRICES = {True: 2, False: 24}
"""Of 16 MiB, in a quick run and in a whole one."""


def measure(quick: bool) -> dict[str, float]:
    """Pairs of a sharded and a gathered version, for each number of ranks."""
    fields: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            fields |= side_by_side(ranks, MATRICES[quick], 2 if quick else 5, Path(folder))
    return fields


def side_by_side(ranks: int, matrices: int, pairs: int, folder: Path) -> dict[str, float]:
    """The fields of so many ranks."""
    with ExitStack() as stack:
        receiver = stack.enter_context(Mapper(folder / f"receiver-{ranks}", {"use": "http"}))
        groups = {
            mode: stack.enter_context(closing(Group(mode, ranks, matrices, receiver)))
            for mode in ("sharded", "gathered")
        }
        for group in groups.values():
            group.cycle()  # the layout is learnt, and pages are touched
        walls = interleaved(pairs, *(group.cycle for group in groups.values()))
        fields = {}
        for (mode, group), wall in zip(groups.items(), walls, strict=True):
            seen = group.seen[-len(wall) :]
            gigabytes = group.size / 1e9
            cpu = statistics.median(each.cpu_s for each in seen)
            fields[f"{mode}_wall_s_{ranks}"] = statistics.median(wall)
            fields[f"{mode}_publish_s_{ranks}"] = statistics.median(e.publish_s for e in seen)
            fields[f"{mode}_cpu_s_per_gb_{ranks}"] = cpu / gigabytes
            fields[f"{mode}_between_mb_{ranks}"] = seen[-1].between / 1e6
            fields[f"{mode}_peak_mb_{ranks}"] = group.peak() / 1e6
        fields["model_mb"] = groups["sharded"].size / 1e6
        fields[f"wall_over_gathered_{ranks}"] = ratio(*walls)
        cpus = [[each.cpu_s for each in group.seen[-pairs:]] for group in groups.values()]
        fields[f"cpu_over_gathered_{ranks}"] = ratio(*cpus)
    return fields
