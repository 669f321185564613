"""Cuts a snapshot into buckets of whole tensors."""

from __future__ import annotations

from dataclasses import replace

import xxhash

from astraflow_core.errors import WeightsError
from astraflow_core.types import Bucket, TensorSpec
from astraflow_weights.snapshot import Snapshot


def cut(tensors: tuple[TensorSpec, ...], most_bytes: int) -> list[tuple[TensorSpec, ...]]:
    """Runs of tensors in the order of the file, at least one and at most that many bytes each; none is empty."""
    runs: list[list[TensorSpec]] = []
    for spec in tensors:
        fits = runs and spec.end - runs[-1][0].start <= most_bytes
        if fits or (runs and (_size([spec]) == 0 or _size(runs[-1]) == 0)):
            runs[-1].append(spec)
        else:
            runs.append([spec])
    return [tuple(run) for run in runs]


def _size(run: list[TensorSpec]) -> int:
    return run[-1].end - run[0].start


def plan(snapshot: Snapshot, most_bytes: int) -> tuple[Bucket, ...]:
    """The buckets of a snapshot. Their digests are taken from the same bytes whose blocks are compared with the
    manifest here, so a receiver that compares them has compared with the manifest. Raises
    :class:`WeightsError` if a block is not what was published."""
    manifest, data = snapshot.manifest, snapshot.data
    for number, digest in enumerate(manifest.blocks):
        start = number * manifest.block_size
        with data[start : start + manifest.block_size] as block:
            if xxhash.xxh3_128_digest(block) != digest:
                raise WeightsError(
                    f"block {number} of version {manifest.version} changed in the trainer's memory"
                )
    buckets = []
    for run in cut(manifest.tensors, most_bytes):
        start = run[0].start
        with data[start : run[-1].end] as bucket:
            digest_of = xxhash.xxh3_128_hexdigest(bucket)
        moved = tuple(replace(t, start=t.start - start, end=t.end - start) for t in run)
        buckets.append(Bucket(moved, digest_of))
    return tuple(buckets)
