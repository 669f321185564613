"""Statistics of groups over trajectories and over tokens, against loops, and their way to the trainer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, units_of
from astraflow_wire.batches import decode_batch, encode_batch, encode_no_batch
from astraflow_wire.frames import Frame, encode_frame

sequence = st.tuples(st.integers(-8, 8).map(lambda x: x / 4), st.integers(0, 5), st.booleans())
groups = st.lists(
    st.lists(st.lists(sequence, min_size=1, max_size=4), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(groups=groups, seed=st.integers(0, 99))
def test_units_are_those_of_nested_loops(
    groups: list[list[list[tuple[float, int, bool]]]], seed: int
) -> None:
    def earned(turns: list[tuple[float, int, bool]]) -> float:
        """Own rewards add up; of those that share one it is the mean, whatever they say."""
        shared = [reward for reward, _, own in turns if not own]
        return sum(reward for reward, _, own in turns if own) + (np.mean(shared) if shared else 0)

    rows, expected = [], []
    number = 40
    for index, group in enumerate(groups):
        means = [earned(turns) for turns in group]
        tokens = [reward for turns in group for reward, count, _ in turns for _ in range(count)]
        for turns, mean in zip(group, means, strict=True):
            for turn, (reward, count, own) in enumerate(turns):
                rows.append((index + 7, number, reward, count, own))
                expected.append(
                    {
                        "turn": turn,
                        "turns": len(turns),
                        "trajectory_reward": mean,
                        "trajectories": len(group),
                        "trajectory_mean": np.mean(means),
                        "trajectory_std": np.std(means, ddof=1) if len(means) > 1 else 0,
                        "trained_tokens": len(tokens),
                        "token_mean": np.mean(tokens) if tokens else 0,
                        "token_std": np.std(tokens, ddof=1) if len(tokens) > 1 else 0,
                    }
                )
            number += 1
    # Groups may lie in any order, as long as the turns of a trajectory follow each other in theirs.
    order = np.argsort(np.random.default_rng(seed).permutation(len(groups))[[r[0] - 7 for r in rows]], kind="stable")  # fmt: skip
    columns = (np.array([r[k] for r in rows])[order] for k in range(5))
    found = asdict(units_of(*columns))
    for name, values in found.items():
        want = [expected[place][name] for place in order]
        np.testing.assert_allclose(values, want, rtol=1e-6, atol=1e-6, err_msg=name)


def test_units_arrive_with_their_batch_and_follow_its_rows() -> None:
    one = np.ones(3, np.int32)
    batch = Batch(
        id="b", policy="p", version=0, lengths=2 * one, tokens=np.arange(6, dtype=np.int32),
        loss_mask=np.array([0, 1] * 3, bool), logprobs=np.zeros(6, np.float32),
        versions=np.zeros(6, np.int32), rewards=np.array([0, 1, 4], np.float32),
        group=np.zeros(3, np.int64), trajectory=np.array([5, 5, 6]), group_size=3 * one,
        group_mean=np.zeros(3, np.float32), group_std=np.zeros(3, np.float32),
        units=units_of(np.zeros(3, np.int64), np.array([5, 5, 6]), np.array([0.0, 1, 4]), one),
    )  # fmt: skip
    received = decode_batch(encode_batch(batch))
    assert isinstance(received, Batch) and received.units is not None
    assert received.units.turn.tolist() == [0, 1, 0]
    assert received.units.trajectory_reward.tolist() == [1, 1, 4]
    assert received.units.trajectory_mean.tolist() == [2.5] * 3
    assert received.units.token_mean.dtype == np.float32
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
    given |= {"loss_mask": off, "group": one, "trajectory": one}
    given["units"] = units_of(one, one, one.astype(float), one, off) if units else None
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
