"""Both ends of a broadcast, over gloo in this process."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import Bucket, Rendezvous, TensorSpec
from astraflow_serving.buckets import digest_of_buffer
from astraflow_torch_weights.buckets import receive, tensors_of
from astraflow_torch_weights.group import GroupRendezvous, follow

pytestmark = pytest.mark.timeout(60)
HOST = "127.0.0.1"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def bucket_of(data: torch.Tensor) -> Bucket:
    """Six floats as a matrix, and a scalar."""
    specs = (TensorSpec("m", "F32", (2, 3), 0, 24), TensorSpec("s", "I64", (), 24, 32))
    return Bucket(specs, digest_of_buffer(data.numpy().data))


def sent(number: int) -> torch.Tensor:
    matrix = torch.arange(6, dtype=torch.float32) + number
    return torch.cat([matrix.view(torch.uint8), torch.tensor([number]).view(torch.uint8)])


def test_an_engine_of_two_workers_receives_at_both(pool: ThreadPoolExecutor) -> None:
    meeting = GroupRendezvous(HOST, HOST, time.monotonic() + 30)
    place = Rendezvous(HOST, meeting.port, 1, 3)
    buckets = [bucket_of(sent(number)) for number in range(3)]

    def work(worker: int) -> list[dict[str, list[float]]]:
        with closing(follow(place, worker, 30)) as group:
            buffers = receive(group, 7, buckets, torch.device("cpu"))
        found = [dict(tensors_of([b], [d])) for b, d in zip(buckets, buffers, strict=True)]
        return [{name: tensor.tolist() for name, tensor in each.items()} for each in found]

    working = [pool.submit(work, worker) for worker in range(2)]
    with closing(meeting.lead({1: "a", 2: "b"}, "gloo")) as group:
        for number in range(3):
            group.broadcast(sent(number))
        assert group.outcomes({1: "a", 2: "b"}) == {"a": "ok", "b": "ok"}
    expected = [{"m": [[n, n + 1, n + 2], [n + 3, n + 4, n + 5]], "s": n} for n in range(3)]
    assert [each.result(30) for each in working] == [expected, expected]


def test_a_torn_bucket_is_named_and_reported_to_the_sender(pool: ThreadPoolExecutor) -> None:
    meeting = GroupRendezvous(HOST, HOST, time.monotonic() + 30)
    place = Rendezvous(HOST, meeting.port, 1, 2)
    buckets = [bucket_of(sent(number)) for number in range(3)]

    def work() -> None:
        with closing(follow(place, 0, 30)) as group:
            receive(group, 7, buckets, torch.device("cpu"))

    working = pool.submit(work)
    with closing(meeting.lead({1: "a"}, "gloo")) as group:
        for number in range(3):
            group.broadcast(sent(number if number != 1 else 9))
        assert "bucket 1 has the digest" in group.outcomes({1: "a"})["a"]
    with pytest.raises(WeightsError, match="version 7 arrived corrupted: bucket 1 has the digest"):
        working.result(30)


def test_those_who_do_not_come_are_named_to_those_who_do(pool: ThreadPoolExecutor) -> None:
    meeting = GroupRendezvous(HOST, HOST, time.monotonic() + 2)
    working = pool.submit(follow, Rendezvous(HOST, meeting.port, 2, 4), 0, 30)
    with pytest.raises(WeightsError, match=r"did not reach the rendezvous: first, third$"):
        meeting.lead({1: "first", 2: "second", 3: "third"}, "gloo")
    with pytest.raises(WeightsError, match=r"did not reach the rendezvous: first, third$"):
        working.result(30)


def test_a_trainer_that_is_not_there_is_an_error_in_time() -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        WeightsError, match=rf"no broadcast from the trainer at 127\.0\.0\.1:{port}"
    ):
        follow(Rendezvous(HOST, port, 1, 2), 0, 0.5)


def test_a_backend_that_is_not_known_is_refused(pool: ThreadPoolExecutor) -> None:
    meeting = GroupRendezvous(HOST, HOST, time.monotonic() + 30)
    working = pool.submit(follow, Rendezvous(HOST, meeting.port, 1, 2), 0, 30)
    with pytest.raises(WeightsError, match="unknown backend 'mpi'; known: gloo, nccl"):
        meeting.lead({1: "a"}, "mpi")
    with pytest.raises(WeightsError, match="unknown backend 'mpi'"):
        working.result(30)
