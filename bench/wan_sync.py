"""Versions across a link of 50 MB/s and 100 ms that breaks once and flips a bit: time, bytes and errors."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import xxhash

from bench.support.processes import started
from bench.support.slow_link import possible
from bench.support.weight_peer import Peer

MEGABYTES_PER_S, ROUND_TRIP_MS = 50.0, 100.0
MEGABYTES, QUICK_MEGABYTES = 256.0, 64.0
DENSITY = 0.0122
LAG = 5


def measure(quick: bool) -> dict[str, float]:
    """``full_over_ideal`` is wall time over (bytes / bandwidth + 2 round trips), faults included;
    ``resent_fraction`` is the share of the version's bytes that arrived more than once; ``silent_errors`` is the number
    of versions that were returned to the caller although their file differs from the published one."""
    if not possible():
        raise RuntimeError("wan_sync needs root: it makes network namespaces and TUN devices")
    result = full(QUICK_MEGABYTES if quick else MEGABYTES, 1 if quick else 3)
    if importlib.util.find_spec("astraflow_plugin_delta"):
        result |= delta(QUICK_MEGABYTES if quick else MEGABYTES, LAG - 1)
    return result


def ideal(size: float) -> float:
    """Seconds for ``size`` bytes through a link that is never idle, and two round trips."""
    return size / (MEGABYTES_PER_S * 1e6) + 2 * ROUND_TRIP_MS / 1000


def full(megabytes: float, rounds: int) -> dict[str, float]:
    """Whole versions, each with a bit flipped at a third and every connection broken at half."""
    over, clean, resent, wrong = [], [], [], 0.0
    with Wan({"use": "http"}, megabytes, 1) as wan:
        size = int(wan.next_version()["size"])
        for _ in range(rounds):
            seen = wan.next_version()
            clean.append(seen["fetch_s"] / ideal(size))
            seen = wan.next_version(flip=size // 3, cut=size // 2)
            over.append(seen["fetch_s"] / ideal(size))
            resent.append((seen["bytes"] - size) / size)
            wrong += seen["wrong"]
    return {
        "full_over_ideal": statistics.median(over),
        "full_over_ideal_without_faults": statistics.median(clean),
        "resent_fraction": statistics.median(resent),
        "silent_errors": wrong,
    }


def delta(megabytes: float, rounds: int) -> dict[str, float]:
    """Deltas to a receiver that has every version, and to one that lags behind."""
    table = {"use": "delta"}
    with Wan(table, megabytes, 2) as wan:
        wan.next_version()
        waits, one = [], []
        wrong = 0.0
        for _ in range(rounds):
            seen = wan.next_version(receivers=(0,))
            waits.append(1000 * (seen["fetch_s"] - ideal(seen["bytes"])) / ROUND_TRIP_MS + 2)
            one.append(seen["bytes"])
            wrong += seen["wrong"]
        for _ in range(LAG - rounds - 1):
            wan.next_version(receivers=())
        late = wan.next_version(receivers=(1,))
        wrong += late["wrong"]
    return {
        "delta_rtts_over_ideal": statistics.median(waits),
        "delta_bytes": statistics.median(one),
        "lag": wan.version - 2.0,
        "lag5_over_lag1": late["bytes"] / statistics.median(one),
        "delta_silent_errors": wrong,
    }


class Wan:
    """A publisher at one end of the link, receivers at the other."""

    def __init__(self, table: dict[str, Any], megabytes: float, receivers: int) -> None:
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        link = self._stack.enter_context(
            started("bench.support.slow_link", str(MEGABYTES_PER_S), str(ROUND_TRIP_MS))
        )
        here, there = link.url.split()
        self._publisher = self._peer(
            half="publisher",
            table=table,
            directory=str(folder / "publisher"),
            megabytes=megabytes,
            density=DENSITY,
            namespace=here,
        )
        self._receivers = [
            self._peer(
                half="receiver", table=table, directory=str(folder / f"r{number}"), namespace=there
            )
            for number in range(receivers)
        ]
        told = self._publish()
        address = told["endpoints"][0].removeprefix("http://")
        self._bad = self._stack.enter_context(started("bench.support.bad_link", address, here))

    version = 0

    def _peer(self, **order: Any) -> Peer:
        return self._stack.enter_context(closing(Peer(**order)))

    def __enter__(self) -> Wan:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _publish(self) -> dict[str, Any]:
        self.version += 1
        told: dict[str, Any] = self._publisher.ask(publish=self.version)["announcement"]
        return told

    def next_version(
        self, receivers: tuple[int, ...] | None = None, flip: int = -1, cut: int = -1
    ) -> dict[str, float]:
        """Publish a version and let some receivers fetch it through the faulty link."""
        told = {**self._publish(), "endpoints": [self._bad.url]}
        chosen = self._receivers if receivers is None else [self._receivers[r] for r in receivers]
        if flip >= 0 or cut >= 0:
            self._receivers[0].ask(post=f"{self._bad.url}/arm?flip={flip}&cut={cut}")
        for receiver in chosen:
            receiver.order(fetch=told)
        came = [receiver.answer() for receiver in chosen]
        return {
            "size": told["size"],
            "fetch_s": max((each["seconds"] for each in came), default=0.0),
            "bytes": max((each["bytes"] for each in came), default=0),
            "wrong": sum(_digest(Path(each["path"])) != told["digest"] for each in came),
        }


def _digest(path: Path) -> str:
    data = memoryview(path.read_bytes())
    blocks = (data[at : at + (2 << 20)] for at in range(0, len(data), 2 << 20))
    return xxhash.xxh3_128_hexdigest(b"".join(xxhash.xxh3_128_digest(block) for block in blocks))
