"""Requests of gradients: what the client 0.38 sends, the same in JSON, and bytes that are neither."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from astraflow_contrib_tinker.routes.training import MOST_BODY_BYTES, decompressed
from astraflow_contrib_tinker.wire import protobuf
from astraflow_contrib_tinker.wire.datums import GradientRequest, read_json, read_protobuf
from astraflow_core.errors import Refused

SENT = base64.b64decode(
    "CgltOnRyYWluOjAQAxqIAQoQCg4KDAMAAAAEAAAABQAAABIhCgphZHZhbnRhZ2VzEhMKDAAAAAAAAIA/AACAvxgBIgEDEh8KCGxvZ3Byb2Jz"
    "EhMKDAAAAAAAAMC/AAAAwBgBIgEDEjAKDXRhcmdldF90b2tlbnMSHwoYBAAAAAAAAAAFAAAAAAAAAAYAAAAAAAAAGAIiAQMasgEKDAoKCggH"
    "AAAACAAAABJXCg10YXJnZXRfdG9rZW5zEkYSPgoQCQAAAAAAAAACAAAAAAAAABIYAAAAAAAAAAABAAAAAAAAAAIAAAAAAAAAGhABAAAAAAAA"
    "AAAAAAAAAAAAGAIiAgIDEkkKB3dlaWdodHMSPhI2CggAAAA/AACAPxIYAAAAAAAAAAABAAAAAAAAAAIAAAAAAAAAGhABAAAAAAAAAAAAAAAA"
    "AAAAGAEiAgIDIgNwcG8qHQoSY2xpcF9sb3dfdGhyZXNob2xkEWZmZmZmZuY/MAE6HwoSY2xpcF9sb3dfdGhyZXNob2xkEgkJZmZmZmZm5j86"
    "CwoEbW9kZRIDEgF4"
)
"""Written by ``tinker.proto.request_conv`` of tinker 0.38.0: a dense datum and a sparse one."""
AS_JSON: dict[str, Any] = {
    "model_id": "m:train:0",
    "seq_id": 3,
    "forward_backward_input": {
        "loss_fn": "ppo",
        "loss_fn_config": {"clip_low_threshold": 0.7, "mode": "x"},
        "data": [
            {
                "model_input": {"chunks": [{"type": "encoded_text", "tokens": [3, 4, 5]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": [4, 5, 6], "dtype": "int64", "shape": [3]},
                    "logprobs": {"data": [0, -1.5, -2], "dtype": "float32", "shape": [3]},
                    "advantages": {"data": [0, 1, -1], "dtype": "float32"},
                },
            },
            {
                "model_input": {"chunks": [{"tokens": [7]}, {"tokens": [8]}]},
                "loss_fn_inputs": {
                    "target_tokens": {
                        "data": [9, 2],
                        "dtype": "int64",
                        "shape": [2, 3],
                        "sparse_crow_indices": [0, 1, 2],
                        "sparse_col_indices": [1, 0],
                    },
                    "weights": {"data": [0, 0.5, 0, 1, 0, 0], "dtype": "float32", "shape": [2, 3]},
                },
            },
        ],
    },
}


def assert_read(asked: GradientRequest) -> None:
    assert (asked.model_id, asked.seq_id, asked.loss, asked.backward) == (
        "m:train:0",
        3,
        "ppo",
        False,
    )
    assert asked.config == {"clip_low_threshold": 0.7, "mode": "x"}
    dense, sparse = asked.data
    assert dense.tokens.tolist() == [3, 4, 5] and sparse.tokens.tolist() == [7, 8]
    assert {name: value.tolist() for name, value in dense.inputs.items()} == {
        "target_tokens": [4, 5, 6],
        "logprobs": [0, -1.5, -2],
        "advantages": [0, 1, -1],
    }
    assert sparse.inputs["target_tokens"].tolist() == [[-1, 9, -1], [2, -1, -1]]
    assert sparse.inputs["weights"].tolist() == [[0, 0.5, 0], [1, 0, 0]]
    assert dense.inputs["logprobs"].dtype == np.float32


def test_what_the_client_sends() -> None:
    assert_read(read_protobuf(SENT))


def test_json_says_the_same() -> None:
    assert_read(read_json(json.dumps(AS_JSON).encode(), backward=False))


def test_no_damaged_body_is_more_than_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(SENT)
        for place in rng.integers(0, len(SENT), 3):
            damaged[place] = int(rng.integers(256))
        try:
            read_protobuf(bytes(damaged[: int(rng.integers(1, len(SENT) + 1))]))
        except Refused as refused:
            assert refused.status == 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": [2, 1 << 40]}, "not a sparse tensor"),
        ({"sparse_col_indices": [1, 9]}, "not a sparse tensor"),
        ({"sparse_crow_indices": [0, 5, 2]}, "not a sparse tensor"),
        ({"dtype": "float64"}, "dtype 'float64'"),
        ({"sparse_crow_indices": None, "shape": [2, 2, 2]}, "shape"),
    ],
)
def test_tensors_that_do_not_hold_together(change: dict[str, Any], said: str) -> None:
    body = json.loads(json.dumps(AS_JSON))
    body["forward_backward_input"]["data"][1]["loss_fn_inputs"]["target_tokens"] |= change
    with pytest.raises(Refused, match=said):
        read_json(json.dumps(body).encode(), backward=True)


def test_other_inputs_than_text_and_no_data_are_refused() -> None:
    asked = protobuf.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="ppo")
    with pytest.raises(Refused, match="no data"):
        read_protobuf(asked.SerializeToString())
    asked.data.add().model_input.add().image.SetInParent()
    with pytest.raises(Refused, match="is not text"):
        read_protobuf(asked.SerializeToString())
    with pytest.raises(Refused, match=r"model_id: Field required"):
        read_json(b"{}", backward=True)


def test_a_body_that_is_large_when_it_is_decompressed_is_refused() -> None:
    import zstandard

    compress = zstandard.ZstdCompressor().compress
    assert decompressed(compress(SENT)) == SENT
    with pytest.raises(Refused, match="decompressed") as large:
        decompressed(compress(bytes(MOST_BODY_BYTES + 1)))
    assert large.value.status == 413
    with pytest.raises(Refused, match="not valid zstd"):
        decompressed(b"neither")
