"""Experts that were chosen for tokens, on the wire: one buffer, which only a group has in which they were recorded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, Group, Sequence, Trajectory
from astraflow_core.types.columns import zeros
from astraflow_core.types.generation import RoutedExperts
from astraflow_wire.batches import decode_batch, encode_batch
from astraflow_wire.column_table import batch_columns
from astraflow_wire.columns import check_limits
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.experts.routing import RoutingShape, joined, of_runs
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.model_files.model_limits import ModelLimits

MODEL = ExpertLayers(layers=3, top_k=2, experts=6)


def ids(start: int, tokens: int = 4, dtype: Any = np.uint8) -> RoutedExperts:
    found: RoutedExperts = (np.arange(tokens * 6) + start).reshape(tokens, 3, 2).astype(dtype) % 6
    return found


def pushed(*routed: tuple[str, RoutedExperts | None]) -> bytes:
    """A group of a sequence of four tokens for each."""
    sampled = np.arange(4) > 0
    columns = (np.where(sampled, -0.5, 0).astype(np.float32), np.where(sampled, 0, -1))
    sequences = [
        Sequence(name, np.arange(4, dtype=np.int32), sampled, *columns, 1.0, routed_experts=given)
        for name, given in routed
    ]
    return encode_group(Group("t", "p", tuple(Trajectory((s,)) for s in sequences)), "raas-3")


def limits(experts: ExpertLayers | None = MODEL) -> dict[str, ModelLimits]:
    return dict.fromkeys(("a", "b"), ModelLimits(experts=experts))


def test_a_group_has_them_of_each_policy_that_records() -> None:
    given = [("a", ids(0)), ("b", None), ("a", None), ("a", ids(5)), ("c", ids(1, dtype=np.uint16))]
    group = ReceivedGroup(pushed(*given))
    check_limits(group, {"c": ModelLimits(experts=ExpertLayers(3, 2, 300)), **limits()})
    assert group.routing is not None and set(group.routing.shapes) == {"a", "c"}
    for number, (policy, expected) in enumerate(given):
        found = bytes(group.routing.between(4 * number, 4 * number + 4))
        absent = b"\xff" * 24 if policy == "a" else b""
        assert found == (absent if expected is None else expected.tobytes())
    assert bytes(group.routing.between(8, 16)) == b"\xff" * 24 + ids(5).tobytes()


def test_a_group_without_them_has_not_one_byte_more() -> None:
    body = pushed(("a", None))
    header = msgspec.msgpack.decode(Frame(body).header)
    assert "routing" not in header and len(Frame(body).buffers) == 4
    assert ReceivedGroup(body).routing is None
    assert len(pushed(("a", ids(0)))) - len(body) < 24 + 40


def test_groups_are_joined_with_and_without_them() -> None:
    groups = [ReceivedGroup(pushed(("a", given))) for given in (None, ids(2))]
    shapes, [pieces] = joined(groups)
    assert isinstance(shapes, dict) and list(shapes) == ["a"]
    assert b"".join(bytes(np.asarray(p).data) for p in pieces) == b"\xff" * 24 + ids(2).tobytes()
    assert joined(groups[:1])[1] == []


def test_a_batch_has_those_of_its_policy_only() -> None:
    group = ReceivedGroup(pushed(("a", ids(1)), ("b", ids(2)), ("a", None), ("a", ids(3))))
    plain = ReceivedGroup(pushed(("a", None)))
    shape, [pieces] = of_runs("a", [(group, 0, 8), (plain, 0, 4), (group, 8, 16)])
    absent = b"\xff" * 24
    expected = ids(1).tobytes() + 3 * absent + ids(3).tobytes()
    assert shape == RoutingShape(3, 2, 1)
    assert b"".join(bytes(np.asarray(p).data) for p in pieces) == expected
    assert of_runs("a", [(plain, 0, 4)]) == (msgspec.UNSET, [])


@pytest.mark.parametrize(
    ("given", "experts", "message"),
    [
        (ids(0), None, "policy 'a' are not recorded in this run, which has not set router_replay"),
        (ids(0, dtype=np.uint16), MODEL, "are uint16 of 3 layers and 2 experts for each token; expected uint8 of 3 "),
        (ids(0)[:, :2], MODEL, "are uint8 of 2 layers and 2 experts"),
        (ids(0) + np.uint8(3), MODEL, "sequence 0: expert 6 at token 0, layer 1; its model has experts 0 to 5"),
    ],
)  # fmt: skip
def test_experts_that_the_model_has_not_are_refused(
    given: RoutedExperts, experts: ExpertLayers | None, message: str
) -> None:
    with pytest.raises(WireError, match=re.escape(message)):
        check_limits(ReceivedGroup(pushed(("a", given))), limits(experts))


def test_a_buffer_of_another_size_is_refused() -> None:
    frame = Frame(pushed(("a", ids(0))))
    header = msgspec.msgpack.decode(frame.header)
    for buffers in (frame.buffers[:4], [*frame.buffers[:4], frame.buffers[4][:-1]]):
        with pytest.raises(WireError, match=r"number 4 is missing|have 23 bytes; 24 were expected"):
            ReceivedGroup(encode_frame(header, [[each] for each in buffers]))


def test_a_batch_keeps_them() -> None:
    columns: dict[str, Any] = zeros(batch_columns(False, False), 2, 8)
    columns["lengths"] = np.array([4, 4], np.int32)
    batch = Batch(id="b", policy="a", version=1, **columns)
    routed = np.concatenate([ids(0), ids(3, dtype=np.uint8)])
    found = decode_batch(encode_batch(replace(batch, routed_experts=routed)))
    assert isinstance(found, Batch) and found.routed_experts is not None
    assert np.array_equal(found.routed_experts, routed)
    taken = found.take(np.array([1])).routed_experts
    assert taken is not None and np.array_equal(taken, ids(3))
    assert b"routing" not in encode_batch(batch)


def test_what_a_configuration_says_of_experts(tmp_path: Path) -> None:
    told = {
        "model_type": "qwen3_moe",
        "num_experts": 300,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 6,
    }
    told |= {"decoder_sparse_step": 2, "mlp_only_layers": [3]}
    (tmp_path / "config.json").write_text(json.dumps(told))
    found = ExpertLayers.of(tmp_path)
    assert found == ExpertLayers(2, 8, 300) and found.dtype == np.uint16
    local = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(local | {"num_hidden_layers": 6}))
    assert ExpertLayers.of(tmp_path) == ExpertLayers(6, 2, 8)
    for change, message in (
        ({"model_type": "qwen3"}, "is of type 'qwen3', which has no experts or is not known"),
        ({"num_experts_per_tok": None}, "has num_experts 300, num_experts_per_tok None and"),
        ({"decoder_sparse_step": "2"}, "has decoder_sparse_step '2'; expected a number"),
        ({"decoder_sparse_step": 0}, "has decoder_sparse_step 0; expected a number from 1 on"),
        ({"mlp_only_layers": "x"}, "has mlp_only_layers 'x'; expected a list of layers"),
        ({"mlp_only_layers": [1.5]}, "has mlp_only_layers [1.5]; expected a list of layers"),
        ({"num_experts": 4}, "has 2 layers with experts, 4 each, of which it chooses 8"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**told, **change}))
        with pytest.raises(ValueError, match=re.escape(message)):
            ExpertLayers.of(tmp_path)
