"""From publishing a version to receivers that have verified it, over loopback: beside plain sockets, and by deltas
beside the reference algorithm."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines import whole_buffer_delta
from bench.baselines.raw_streams import RawStreams
from bench.support.processes import started
from bench.support.timing import interleaved, seconds, spread
from bench.support.updates import uniform
from bench.support.weight_peer import Peer

MEGABYTES, FOR_MANY, QUICK_MEGABYTES = 500, 200, 32
"""Of a version for one receiver, for several, and for all in a quick run."""
DENSITY = 0.0122
STREAMS = 4
RECEIVERS, QUICK_RECEIVERS = (1, 2, 4, 8), (1, 8)
MEMORY = Path("/dev/shm")
WARM = 5
"""Versions until a receiver of deltas patches files that it has patched before."""
CYCLE = 8
"""Versions in which each kind of merged delta is made as often as ever; CPU seconds of deltas are means over them."""


def measure(quick: bool) -> dict[str, float]:
    """``full_over_limit`` is the time of plain sockets that hash, over that of one receiver of a full version."""
    megabytes, for_many = (QUICK_MEGABYTES,) * 2 if quick else (MEGABYTES, FOR_MANY)
    receivers, rounds, cycle = (QUICK_RECEIVERS, 2, 2) if quick else (RECEIVERS, 5, CYCLE)
    return (
        full_beside_sockets(megabytes, rounds)
        | full_by_receivers(for_many, rounds, receivers)
        | delta_beside_reference(megabytes, cycle)
        | delta_by_receivers(for_many, cycle, receivers)
    )


def full_beside_sockets(megabytes: float, pairs: int) -> dict[str, float]:
    """One receiver of full versions, and as many bytes over as many plain sockets, in turn."""
    with Flow({"use": "http", "streams": STREAMS}, megabytes, 1) as flow:
        flow.next_version()
        size = flow.announcement["size"]
        with started("bench.baselines.raw_streams") as plain:
            raw = RawStreams(plain, size, STREAMS)
            ours, limit = interleaved(
                pairs,
                lambda: flow.next_version()["fetch_s"],
                lambda: seconds(raw.receive),
            )
            raw.close()
    ratios = [theirs / mine for mine, theirs in zip(ours, limit, strict=True)]
    return {
        "full_over_limit": statistics.median(ratios),
        "full_spread": spread(limit, ours),
        "full_gb_per_s": size / statistics.median(ours) / 1e9,
        "limit_gb_per_s": size / statistics.median(limit) / 1e9,
        "full_fetch_cpu_s_per_gb": statistics.median(flow.fetch_cpu) / size * 1e9,
    }


def full_by_receivers(megabytes: float, rounds: int, receivers: Sequence[int]) -> dict[str, float]:
    """CPU seconds of the publisher, and wall seconds until the last has verified, by receivers."""
    result: dict[str, float] = {}
    with Flow({"use": "http", "streams": STREAMS}, megabytes, max(receivers)) as flow:
        for count, seen in by_receivers(flow, rounds, receivers):
            cpu = statistics.median(each["publisher_cpu"] for each in seen)
            result[f"full_publisher_cpu_s_{count}"] = cpu
            result[f"full_wall_s_{count}"] = statistics.median(each["wall_s"] for each in seen)
    result["full_publisher_cpu_8_over_1"] = (
        result["full_publisher_cpu_s_8"] / result["full_publisher_cpu_s_1"]
    )
    return result


def delta_beside_reference(megabytes: float, pairs: int) -> dict[str, float]:
    """CPU seconds of the reference algorithm over those of the transport `delta`, in turn.

    Ours: snapshot, delta, transfer, patch, verification and what is merged afterwards, of both processes. The
    reference: the trainer's copy into shared memory, encode and apply, in one process and without a transfer.
    """
    old, new = uniform(int(megabytes * 1e6) // 2, DENSITY)
    snapshot, states = np.zeros_like(old), [old, new]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        theirs = whole_buffer_delta.Receiver(old, Path(folder) / "model")

        def reference() -> float:
            began = time.process_time()
            snapshot[:] = states[1]
            theirs.apply(whole_buffer_delta.encode(*states))
            states.reverse()
            return time.process_time() - began

        with delta_flow(megabytes, 1) as flow:
            seen: list[dict[str, float]] = []

            def ours() -> float:
                seen.append(flow.next_version())
                return seen[-1]["cpu"]

            mine, reference_cpu = interleaved(pairs, ours, reference)
    return {
        "delta_vs_reference": sum(reference_cpu) / sum(mine),
        "delta_spread": spread(reference_cpu, mine),
        "delta_cpu_s": statistics.mean(mine),
        "delta_reference_cpu_s": statistics.mean(reference_cpu),
        "delta_publish_s": statistics.median(s["publish_s"] for s in seen),
        "delta_wall_s": statistics.median(s["wall_s"] for s in seen),
        "delta_bytes_over_full": statistics.median(s["bytes"] for s in seen) / (megabytes * 1e6),
    }


def delta_by_receivers(megabytes: float, rounds: int, receivers: Sequence[int]) -> dict[str, float]:
    """CPU seconds of all processes for one version by deltas, by receivers."""
    result: dict[str, float] = {}
    with delta_flow(megabytes, max(receivers)) as flow:
        for count, seen in by_receivers(flow, rounds, receivers):
            result[f"delta_cpu_s_{count}"] = statistics.mean(each["cpu"] for each in seen)
            cpu = statistics.mean(each["publisher_cpu"] for each in seen)
            result[f"delta_publisher_cpu_s_{count}"] = cpu
    result["cpu_8_over_1"] = result["delta_cpu_s_8"] / result["delta_cpu_s_1"]
    result["delta_publisher_cpu_8_over_1"] = (
        result["delta_publisher_cpu_s_8"] / result["delta_publisher_cpu_s_1"]
    )
    return result


def by_receivers(
    flow: Flow, rounds: int, receivers: Sequence[int]
) -> Iterator[tuple[int, list[dict[str, float]]]]:
    """Versions for so many of the flow's receivers, from all of them down: those left out stay as they are."""
    for count in sorted(receivers, reverse=True):
        flow.next_version(count)
        yield count, [flow.next_version(count) for _ in range(rounds)]


def delta_flow(megabytes: float, receivers: int) -> Flow:
    """Publisher and receivers that have both of their files and every kernel compiled."""
    table = {"use": "delta", "streams": STREAMS}
    if MEMORY.is_dir():
        table["directory"] = str(MEMORY)
    flow = Flow(table, megabytes, receivers)
    for _ in range(WARM):
        flow.next_version()
    return flow


class Flow:
    """A publisher and receivers, each a process, and versions that go from one to the others."""

    def __init__(
        self, table: dict[str, Any], megabytes: float, receivers: int, density: float = DENSITY
    ) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        common = {"table": table, "directory": str(folder / "publisher")}
        self._publisher = self._peer(
            half="publisher", megabytes=megabytes, density=density, **common
        )
        self._receivers = [
            self._peer(half="receiver", table=table, directory=str(folder / f"receiver-{number}"))
            for number in range(receivers)
        ]
        self.version = 0
        self.announcement: dict[str, Any] = {}
        self.fetch_cpu: list[float] = []
        self._cpu = 0.0

    def _peer(self, **order: Any) -> Peer:
        return self._stack.enter_context(closing(Peer(**order)))

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def next_version(self, receivers: int | None = None) -> dict[str, float]:
        """Publish one version, which all or the first so many ``receivers`` fetch. ``wall_s`` runs from the publish to
        the last verified byte;
        ``publisher_cpu`` covers the snapshot and the serving, ``fetch_s`` and ``bytes`` are of the slowest."""
        self.version += 1
        told = self._publisher.ask(publish=self.version)
        self.announcement = told["announcement"]
        fetching = self._receivers[:receivers]
        for receiver in fetching:
            receiver.order(fetch=self.announcement)
        came = [receiver.answer() for receiver in fetching]
        cpu = self._publisher.ask()["cpu"]
        spent = cpu - (told["cpu"] - told["publish_cpu"])
        self.fetch_cpu += [each["fetch_cpu"] for each in came]
        return {
            "wall_s": max(each["ended"] for each in came) - told["began"],
            "publish_s": told["seconds"],
            "publisher_cpu": spent,
            "cpu": spent + sum(each["fetch_cpu"] for each in came),
            "fetch_s": max(each["seconds"] for each in came),
            "bytes": max(each["bytes"] for each in came),
        }
