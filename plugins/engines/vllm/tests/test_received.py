"""What a worker does with a buffer of a trainer's GPU, up to the call of CUDA; the rest is in ``test_gpu.py``."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

torch = pytest.importorskip("torch")
from astraflow_plugin_vllm.workers.received import (  # noqa: E402
    BufferLayout,
    TornBucket,
    broadcast,
    mapped,
    opened,
)


def packed() -> tuple[BufferLayout, np.ndarray]:
    first = np.arange(6, dtype=np.float32)
    second = np.array([1, -2], dtype=np.int64)
    data = np.frombuffer(first.tobytes() + second.tobytes(), np.uint8).copy()
    tensors = [("a", "F32", [2, 3], 0, 24), ("b", "I64", [2], 24, 40)]
    return BufferLayout(tensors, xxhash.xxh3_128_hexdigest(data)), data


def test_the_tensors_of_a_whole_buffer_are_views_of_it() -> None:
    layout, data = packed()
    buffer = torch.from_numpy(data)
    found = dict(opened(buffer, layout))
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["b"].tolist() == [1, -2]
    assert layout.size == 40
    assert found["a"].untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


@pytest.mark.parametrize("at", [0, 23, 39])
def test_one_wrong_bit_and_none_of_it_is_used(at: int) -> None:
    layout, data = packed()
    data[at] ^= 1
    tensors = opened(torch.from_numpy(data), layout)
    with pytest.raises(TornBucket, match=layout.digest):
        next(tensors)


def test_a_worker_without_cuda_refuses_and_says_what_to_use() -> None:
    layout, _ = packed()
    for receive in (
        lambda: broadcast(None, layout, torch.device("cpu")),
        lambda: mapped({}, layout, torch.device("cpu")),
    ):
        with pytest.raises(RuntimeError, match="need CUDA; this worker computes on 'cpu'"):
            receive()
