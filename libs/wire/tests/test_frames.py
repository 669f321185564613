from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, Group, Sequence, Trajectory
from astraflow_wire.batches import NoBatch, decode_batch, encode_batch, encode_no_batch
from astraflow_wire.frames import Frame, encode_frame, frame_parts
from astraflow_wire.groups import ReceivedGroup, encode_group

lengths = st.lists(st.integers(2, 12), min_size=1, max_size=6)


def make_group(sizes: list[int], seed: int = 0) -> Group:
    rng = np.random.default_rng(seed)
    trajectories = []
    for size in sizes:
        mask = rng.random(size) < 0.6
        mask[0] = False
        versions = np.where(mask, rng.integers(0, 5, size), -1).astype(np.int32)
        sequence = Sequence(
            "p",
            rng.integers(0, 100, size).astype(np.int32),
            mask,
            np.where(mask, -rng.random(size), 0).astype(np.float32),
            versions,
        )
        trajectories.append(Trajectory((sequence,), (), {"p": float(rng.random())}))
    return Group("task", "prompt", tuple(trajectories))


@given(lengths, st.integers(0, 1000))
def test_a_group_arrives_as_it_was_sent(sizes: list[int], seed: int) -> None:
    group = make_group(sizes, seed)
    received = ReceivedGroup(encode_group(group, "raas"))
    for index, trajectory in enumerate(group.trajectories):
        (sequence,) = trajectory.sequences
        part = slice(received.offsets[index], received.offsets[index + 1])
        assert (received.tokens[part] == sequence.tokens).all()
        assert (received.loss_mask[part].astype(bool) == sequence.loss_mask).all()
        assert (received.logprobs[part] == sequence.logprobs).all()
        assert (received.versions[part] == sequence.versions).all()
        header = received.header.sequences[index]
        assert header.min_version == sequence.min_version
        assert header.reward == trajectory.rewards["p"]


@given(st.data())
def test_damaged_bytes_are_refused_or_still_make_sense(data: st.DataObject) -> None:
    body = bytearray(encode_group(make_group([4, 7]), "raas"))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for candidate in (bytes(body), bytes(body[:cut])):
        try:
            received = ReceivedGroup(candidate)
        except WireError:
            continue
        assert len(received.tokens) == received.offsets[-1]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_wire_error(body: bytes) -> None:
    with pytest.raises(WireError):
        ReceivedGroup(body)


def test_a_batch_arrives_as_it_was_sent() -> None:
    batch = Batch(
        id="p-000001",
        policy="p",
        version=4,
        lengths=np.array([2, 3], np.int32),
        tokens=np.arange(5, dtype=np.int32),
        loss_mask=np.array([0, 1, 0, 1, 1], bool),
        logprobs=np.linspace(-1, 0, 5, dtype=np.float32),
        versions=np.array([-1, 3, -1, 4, 4], np.int32),
        rewards=np.array([0, 1], np.float32),
        group=np.array([7, 7], np.int64),
        trajectory=np.array([1, 2], np.int64),
        group_size=np.array([2, 2], np.int32),
        group_mean=np.array([0.5, 0.5], np.float32),
        group_std=np.array([0.7, 0.7], np.float32),
        temperature=0.5,
    )
    received = decode_batch(encode_batch(batch))
    assert isinstance(received, Batch)
    for name in ("id", "policy", "version", "temperature"):
        assert getattr(received, name) == getattr(batch, name)
    for name in ("lengths", "tokens", "loss_mask", "logprobs", "versions", "rewards", "group_std"):
        assert (getattr(received, name) == getattr(batch, name)).all()
    assert decode_batch(encode_no_batch(True, "done", 3)) == NoBatch(
        ended=True, reason="done", best_version=3
    )


def test_a_frame_of_absurd_sizes_is_refused_before_anything_is_allocated() -> None:
    body = bytearray(encode_frame({}, [np.zeros(3)]))
    body[12:20] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(WireError, match="announces"):
        Frame(bytes(body))


@pytest.mark.parametrize("length", [100, 100_000])
def test_pieces_of_a_buffer_are_written_as_one(length: int) -> None:
    whole, mask = np.arange(length, dtype=np.int32), np.arange(7) % 2 == 0
    pieces = [whole[:3], whole[3:3], whole[3:60], whole[60:]]
    expected = encode_frame({"a": 1}, [whole, mask])
    assert encode_frame({"a": 1}, [pieces, mask]) == expected
    as_bytes = whole.view(np.uint8).data
    assert encode_frame({"a": 1}, [[as_bytes[:10], as_bytes[10:]], mask]) == expected


def test_large_pieces_are_not_copied_and_many_small_ones_are_joined() -> None:
    large = [memoryview(bytes(1 << 20)), memoryview(bytes(1 << 20))]
    parts = frame_parts({}, [large])
    assert all(any(part is view for part in parts) for view in large)
    small = frame_parts({}, [[memoryview(b"ab")] * 1000])
    assert len(small) <= 6 and b"ab" * 1000 in small
