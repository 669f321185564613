"""Rewards of turns on the wire: positions and values, and nothing at all where there are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, Group, Sequence, Trajectory
from astraflow_core.types.columns import zeros
from astraflow_wire.batches import decode_batch, encode_batch
from astraflow_wire.column_table import batch_columns
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.sparse import problems


def pushed(*turn_rewards: Mapping[int, float] | None) -> bytes:
    """A group of sequences of four tokens, of which the last three were sampled."""
    sampled = np.arange(4) > 0
    logprobs, versions = (np.where(sampled, -0.5, 0), np.where(sampled, 0, -1))
    sequences = [
        Sequence(
            "solver",
            np.arange(4, dtype=np.int32),
            sampled,
            logprobs,
            versions,
            1.0,
            turn_rewards=given,
        )
        for given in turn_rewards
    ]
    return encode_group(Group("t", "p", tuple(Trajectory((s,)) for s in sequences)), "raas-3")


def changed(header: Mapping[str, Any], *sparse: Any) -> bytes:
    """The group of one sequence with an unchecked header and unchecked buffers of sparse columns."""
    frame = Frame(pushed({1: 0.5}))
    whole = msgspec.msgpack.decode(frame.header) | header
    return encode_frame(whole, [*([buffer] for buffer in frame.buffers[:4]), *sparse])


def test_a_group_has_the_tokens_of_turns_that_earned_something() -> None:
    group = ReceivedGroup(pushed(None, {3: 2.0, 1: -0.5}, {2: 0.25}))
    given = group.sparse["turn_rewards"]
    assert group.header.sparse == ["turn_rewards"]
    assert given.positions.tolist() == [5, 7, 10] and given.values.tolist() == [-0.5, 2.0, 0.25]
    assert len(group.columns) == 4


def test_a_group_without_any_has_no_buffers_of_them() -> None:
    for body in (pushed(None, None), pushed({}, None)):
        group = ReceivedGroup(body)
        assert not group.sparse and group.header.sparse == [] and len(Frame(body).buffers) == 4


NAMED = {"sparse": ["turn_rewards"]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (changed(NAMED, np.array([4]), np.ones(1, np.float32)), "ascending numbers of the 4 tokens"),
        (changed(NAMED, np.array([-1]), np.ones(1, np.float32)), "ascending numbers of the 4 tokens"),
        (changed(NAMED, np.array([2, 1]), np.ones(2, np.float32)), "ascending numbers"),
        (changed(NAMED, np.array([2, 2]), np.ones(2, np.float32)), "ascending numbers"),
        (changed(NAMED, np.array([1]), np.ones(2, np.float32)), "buffer 5 has 8 bytes; 4 were"),
        (changed(NAMED, np.array([1], np.int32), np.ones(1, np.float32)), "buffer 4 has 4 bytes"),
        (changed(NAMED), "the frame has 4 buffers; 6 were expected"),
        (changed({"sparse": []}, np.array([1]), np.ones(1, np.float32)), "the frame has 6 buffers; 4 were"),
        (changed({"sparse": ["other"]}, np.array([1]), np.ones(1, np.float32)), "'other'; expected some"),
        (
            changed(NAMED, np.array([1, 2]), np.array([1, np.nan], np.float32)),
            "'raas-3', sequence 0 of policy 'solver': turn_rewards has nan at token 2; expected values",
        ),
        (
            changed(NAMED, np.array([0]), np.ones(1, np.float32)),
            "turn_rewards has 1.0 at token 0; expected values within .*, of sampled tokens",
        ),
    ],
)  # fmt: skip
def test_what_no_workflow_can_mean_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(WireError, match=told):
        ReceivedGroup(body)


@pytest.mark.parametrize("given", [None, [0, 0, 0.5, 0, -1], [0.0] * 5])
def test_a_batch_has_an_element_for_each_token_again(given: list[float] | None) -> None:
    columns = zeros(batch_columns(units=False, source=False), 2, 5)
    columns["lengths"] += np.array([2, 3], np.int32)
    dense = None if given is None else np.array(given, np.float32)
    batch = Batch(id="b", policy="p", version=0, turn_rewards=dense, **columns)
    received = decode_batch(encode_batch(batch))
    assert isinstance(received, Batch)
    if given is None:
        assert received.turn_rewards is None
        return
    assert received.turn_rewards is not None and received.turn_rewards.dtype == np.float32
    assert received.turn_rewards.tolist() == given
    assert len(encode_batch(received)) < len(encode_batch(batch)) + 8 * 5


def taught(given: Any) -> Sequence:
    sampled = np.arange(4) > 0
    logprobs, versions = np.where(sampled, -0.5, 0), np.where(sampled, 0, -1)
    tokens = np.arange(4, dtype=np.int32)
    return Sequence("solver", tokens, sampled, logprobs, versions, 1.0, teacher_logprobs=given)


def test_what_a_teacher_gives_each_token_travels_as_an_array() -> None:
    given = np.array([0, -0.5, 0, -2], np.float32)
    trajectories = tuple(Trajectory((taught(each),)) for each in (None, given))
    group = ReceivedGroup(encode_group(Group("t", "p", trajectories), "raas-3"))
    found = group.sparse["teacher_logprobs"]
    assert found.positions.tolist() == [5, 7] and found.values.dtype == np.float32
    np.testing.assert_array_equal(found.between(4, 8).dense(4), given)
    for wrong, said in (
        (np.zeros(3, np.float32), r"shape \(3,\); expected one number for each of the 4 tokens"),
        (np.array([0, 0, np.nan, 0]), "not finite"),
        (np.array([-1.0, 0, 0, 0]), "names token 0, which no policy sampled"),
    ):
        (problem,) = problems(taught(wrong))
        assert re.search(f"whose teacher_logprobs .*{said}", problem), problem
    assert not list(problems(taught(given)))
