"""A trainer's GET of a batch from a full buffer, compared with a raw socket and with padded pickles."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from astraflow_core.types import Batch
from astraflow_wire.batches import decode_batch
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import (
    AcknowledgeBatch,
    BatchAcknowledged,
    GroupPushed,
    LeaseTasks,
    Message,
    NextBatch,
    RaasRegistered,
    RegisterRaas,
    RegisterTrainer,
    TasksLeased,
    TrainerRegistered,
    VersionAnnounced,
)
from bench.baselines.padded_pickle import get_batch
from bench.baselines.raw_socket import RawSocket
from bench.support.groups import FIRST, Groups, announcement
from bench.support.processes import TOKEN, Service, dataflow, started
from bench.support.timing import cpu_of, interleaved, percentile, ratio, seconds, spread

ROWS, SIZE = 128, 8
POLICY = "solver"
DEADLINE_S = 60.0
PAIRS = {1024: (8, 120), 8192: (3, 30), 32768: (2, 10)}
"""Tokens of a row: pairs of a quick run and of a whole one."""


def measure(quick: bool) -> dict[str, float]:
    """Wall time from the request to the decoded arrays, over that of the socket and of the reference.

    ``vs_reference*`` are of rows of 1k tokens. ``cpu_ms_*`` are of the service and of the trainer together.
    """
    result: dict[str, float] = {}
    lost = 0
    for length, (few, many) in PAIRS.items():
        seen = beside_socket(length, few if quick else many)
        name = f"{length // 1024}k"
        result[f"over_socket_{name}"] = ratio(seen.ours, seen.socket)
        result[f"spread_{name}"] = spread(seen.ours, seen.socket)
        result[f"p50_ms_{name}"] = 1000 * statistics.median(seen.ours)
        result[f"socket_ms_{name}"] = 1000 * statistics.median(seen.socket)
        result[f"service_cpu_ms_{name}"] = 1000 * statistics.median(seen.cpu)
        result["bytes_per_token"] = max(result.get("bytes_per_token", 0.0), seen.bytes_per_token)
        lost += seen.lost
        if length == 1024:
            p99 = percentile(seen.ours, 0.99)
            result["p99_over_p50"] = p99 / statistics.median(seen.ours)
    return {**result, **beside_reference(2 if quick else 9), "lost": lost}


@dataclass
class Seen:
    """Seconds of each transfer, CPU seconds of the service in each of ours, and the number of lost rows."""

    ours: list[float] = field(default_factory=list)
    socket: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    bytes_per_token: float = 0.0
    lost: int = 0


def beside_socket(length: int, pairs: int) -> Seen:
    """Batches of rows of ``length`` tokens and as many bytes over a plain socket, in turn."""
    with (
        dataflow(policy={"batch_sequences": ROWS}) as service,
        started("bench.baselines.raw_socket") as plain,
    ):
        full = FullBuffer(service, length)
        size = full.get()
        raw = RawSocket(plain, size)
        seen = Seen(bytes_per_token=size / (ROWS * length))
        seen.ours, seen.socket = interleaved(pairs, full.timed, lambda: seconds(raw.receive))
        seen.cpu, seen.lost = full.cpu, full.lost
        raw.close()
        full.close()
        return seen


def beside_reference(pairs: int) -> dict[str, float]:
    """The reference's time over ours, with and without the sleep that paces it."""
    rows = ("bench.baselines.padded_pickle", str(ROWS), "1024")
    with dataflow(policy={"batch_sequences": ROWS}) as service, started(*rows) as reference:
        full = FullBuffer(service, 1024)
        ours, paced, eager = interleaved(
            pairs,
            full.timed,
            lambda: seconds(lambda: get_batch(reference, "/batch")),
            lambda: seconds(lambda: get_batch(reference, "/eager")),
        )
        full.close()
    return {
        "vs_reference": ratio(paced, ours),
        "vs_reference_without_sleep": ratio(eager, ours),
        "reference_ms": 1000 * statistics.median(paced),
        "reference_without_sleep_ms": 1000 * statistics.median(eager),
    }


class FullBuffer:
    """A dataflow whose buffer is filled before every batch, and its trainer."""

    def __init__(self, service: Service, length: int) -> None:
        self._service, self._length = service, length
        self._groups = Groups(SIZE, length)
        self._client = SyncClient(service.url, TOKEN)
        self.cpu: list[float] = []
        self.lost = 0
        self._post("trainers/register", RegisterTrainer(policy=POLICY, pid=1, host="bench"),
                   TrainerRegistered)  # fmt: skip
        version = announcement(POLICY)
        self._post("versions", version, VersionAnnounced)
        raas = RegisterRaas(raas="r0", pid=1, host="bench", policies=[POLICY], capacity=ROWS)
        self._post("raas/register", raas, RaasRegistered)

    def _post(self, path: str, message: Message, expected: type[Message]) -> Message:
        return self._client.post(f"/v1/{path}", message, expected, deadline_s=DEADLINE_S)

    def fill(self) -> None:
        """Roll out one batch."""
        ask = LeaseTasks(
            raas="r0",
            free=ROWS,
            wait_s=5.0,
            serving={POLICY: 0},
            seen={POLICY: 0},
            incarnation=FIRST,
        )
        leased = self._post("tasks/lease", ask, TasksLeased)
        assert isinstance(leased, TasksLeased) and len(leased.tasks) == ROWS // SIZE
        for task in leased.tasks:
            body = self._groups.body(task, "r0")
            self._client.post_bytes("/v1/groups", body, GroupPushed, deadline_s=DEADLINE_S)

    def timed(self) -> float:
        """Seconds of the trainer's request on a full buffer, the decoding included."""
        self.fill()
        batch: list[Batch] = []
        before = cpu_of(self._service.pid)
        taken = seconds(lambda: batch.append(self._batch()[0]))
        self.cpu.append(cpu_of(self._service.pid) - before)
        self._done(batch[0])
        return taken

    def get(self) -> int:
        """One batch; its size in bytes."""
        self.fill()
        batch, size = self._batch()
        self._done(batch)
        return size

    def _batch(self) -> tuple[Batch, int]:
        ask = NextBatch(policy=POLICY, version=0, wait_s=10.0, incarnation=FIRST)
        body = self._client.post_for_bytes("/v1/batches/next", ask, deadline_s=DEADLINE_S)
        batch = decode_batch(body)
        assert isinstance(batch, Batch), batch
        return batch, len(body)

    def _done(self, batch: Batch) -> None:
        came = set(batch.tokens[batch.offsets[:-1]].tolist())
        self.lost += ROWS - len(came)
        message = AcknowledgeBatch(
            policy=POLICY, batch=batch.id, version=0, metrics={}, incarnation=FIRST
        )
        self._post("batches/ack", message, BatchAcknowledged)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
