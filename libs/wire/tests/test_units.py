"""Statistics of groups over trajectories and over tokens on their way to the trainer."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, NamedRewards, Units
from astraflow_core.types.columns import zeros
from astraflow_core.types.named_rewards import NAMED_REWARD_COLUMNS
from astraflow_core.types.units import UNIT_COLUMNS
from astraflow_wire.batches import decode_batch, encode_batch, encode_no_batch
from astraflow_wire.frames import Frame, encode_frame


def test_units_arrive_with_their_batch_and_follow_its_rows() -> None:
    one = np.ones(3, np.int32)
    batch = Batch(
        id="b", policy="p", version=0, lengths=2 * one, tokens=np.arange(6, dtype=np.int32),
        loss_mask=np.array([0, 1] * 3, bool), logprobs=np.zeros(6, np.float32),
        versions=np.zeros(6, np.int32), rewards=np.array([0, 1, 4], np.float32),
        group=np.zeros(3, np.int64), trajectory=np.array([5, 5, 6]), group_size=3 * one,
        group_mean=np.zeros(3, np.float32), group_std=np.zeros(3, np.float32),
        units=Units(**{
            **zeros(UNIT_COLUMNS, 3, 0), "turn": np.array([0, 1, 0], np.int32), "turns": np.array([2, 2, 1], np.int32),
            "trajectory_reward": np.array([1, 1, 4], np.float32),
        }),
        named_rewards=NamedRewards(("correct", "form"), *np.arange(18, dtype=np.float32).reshape(3, 2, 3)),
    )  # fmt: skip
    received = decode_batch(encode_batch(batch))
    assert isinstance(received, Batch) and received.units is not None
    assert received.units.turn.tolist() == [0, 1, 0]
    assert received.units.trajectory_reward.tolist() == [1, 1, 4]
    assert received.units.token_mean.dtype == np.float32
    assert received.named_rewards is not None and batch.named_rewards is not None
    assert received.named_rewards.names == ("correct", "form")
    for column in NAMED_REWARD_COLUMNS:
        sent = getattr(batch.named_rewards, column.name)
        np.testing.assert_array_equal(getattr(received.named_rewards, column.name), sent)
    part = received.take(np.array([2, 1]))
    assert part.units is not None and part.units.turns.tolist() == [1, 2]


@pytest.mark.parametrize("units", [True, False])
def test_a_batch_has_the_keys_and_buffers_that_are_documented(units: bool) -> None:
    one, off = np.ones(1, np.int64), np.zeros(1, np.bool_)
    given: dict[str, Any] = dict.fromkeys(Batch.__dataclass_fields__)
    given |= dict.fromkeys(("tokens", "lengths", "versions", "group_size"), one.astype(np.int32))
    given |= dict.fromkeys(
        ("logprobs", "rewards", "group_mean", "group_std"), one.astype(np.float32)
    )
    given |= {"id": "p-0", "policy": "p", "version": 0, "temperature": 1.0, "source": ""}
    given |= {"loss_mask": off, "group": one, "trajectory": one, "images": ()}
    given["units"] = Units(**zeros(UNIT_COLUMNS, 1, 0)) if units else None
    fields = Batch.__dataclass_fields__
    sound = encode_batch(Batch(**{name: given[name] for name in given if fields[name].init}))
    frame = Frame(sound)
    assert len(frame.buffers) == (20 if units else 11)
    decode_batch(sound)
    header = msgspec.msgpack.decode(frame.header)
    buffers = [np.frombuffer(buffer, np.uint8) for buffer in frame.buffers]
    with pytest.raises(WireError, match="unknown field `surprise`"):
        decode_batch(encode_frame(header | {"surprise": 1}, buffers))
    with pytest.raises(
        WireError, match=f"{len(buffers) + 1} buffers; {len(buffers)} were expected"
    ):
        decode_batch(encode_frame(header, [*buffers, buffers[0]]))


def test_the_answer_without_a_batch_is_as_strict() -> None:
    header = msgspec.msgpack.decode(Frame(encode_no_batch(True, "done")).header)
    for wrong, buffers in ((header | {"surprise": 1}, []), (header, [np.ones(1)])):
        with pytest.raises(WireError, match=r"surprise|1 buffers; 0 were expected"):
            decode_batch(encode_frame(wrong, buffers))
