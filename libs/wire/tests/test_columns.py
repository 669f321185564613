"""No value that no sampling gives gets past a push, and every refusal names who, whose and which."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.errors import WireError
from astraflow_core.types import Group, Sequence, Trajectory
from astraflow_wire.columns import (
    HIGHEST_LOGPROB,
    LARGEST_REWARD,
    LOWEST_LOGPROB,
    check_limits,
)
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.groups import GroupHeader, ReceivedGroup, encode_group
from astraflow_wire.limits import MAX_SEQUENCES
from astraflow_wire.model_files.model_limits import MOST, ModelLimits

SOUND = Sequence(
    "solver",
    np.array([7, 8, 9, 10], np.int32),
    np.array([False, True, True, True]),
    np.array([0, -0.5, -1, -2], np.float32),
    np.array([-1, 0, 0, 1], np.int32),
    1.0,
)


def pushed(**changes: Any) -> bytes:
    """A group of two sequences, of which the second is changed."""
    arrays = {
        name: np.array(value, getattr(SOUND, name).dtype) if name != "reward" else value
        for name, value in changes.items()
    }
    wrong = replace(SOUND, **arrays)
    both = tuple(Trajectory((sequence,)) for sequence in (SOUND, wrong))
    return encode_group(Group("t", "p", both), "raas-3")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens": [7, 8, -5, 10]}, "tokens has -5 at token 2; expected ids of 0 or more"),
        ({"logprobs": [0, -0.5, np.nan, -2]}, "logprobs has nan at token 2; expected finite"),
        ({"logprobs": [0, -np.inf, -1, -2]}, "logprobs has -inf at token 1; expected finite"),
        ({"logprobs": [0, 0.5, 3, -2]}, "logprobs has 0.5 at token 1, and 1 more of the group"),
        ({"logprobs": [0, -0.5, -1, -1e30]}, "logprobs has .* at token 3; expected .* from -44 to"),
        ({"versions": [-1, -1, -1, -1]}, "versions: a trained token has no version"),
        (
            {"logprobs": [0, -0.5, np.nan, -2], "loss_mask": [False] * 4},
            "logprobs has nan at token 2",
        ),
        ({"logprobs": [0, 7, -1, -2], "loss_mask": [False] * 4}, "logprobs has 7.0 at token 1"),
        (
            {"loss_mask": [False, False, True, True], "versions": [-1, -1, 0, 0]},
            "logprobs has -0.5 at token 1; expected 0 where no policy sampled, as version -1 says",
        ),
        ({"versions": [0, 0, 0, 0]}, "versions has 0 at token 0; expected -1, since no policy"),
        ({"versions": [-2, 0, 0, 0]}, "versions has -2 at token 0; expected -1 or more"),
        ({"loss_mask": [True] * 4, "versions": [0] * 4}, "the first token cannot be trained"),
        ({"reward": float("inf")}, "reward is inf; a reward is finite"),
        ({"reward": float("nan")}, "reward is nan"),
        ({"reward": -1e30}, "reward is -1e[+]30"),
    ],
)
def test_values_that_no_sampling_gives_are_refused_by_name(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(WireError, match=f"RaaS 'raas-3', sequence 1 of policy 'solver': {told}"):
        ReceivedGroup(pushed(**changes))


def test_a_mask_is_zero_or_one() -> None:
    frame = Frame(pushed())
    mask = np.array(frame.array(1, np.uint8, 8))
    mask[6] = 2
    header = msgspec.msgpack.decode(frame.header)
    columns = [frame.array(0, np.int32, 8), mask, *(frame.array(i, np.int32, 8) for i in (2, 3))]
    with pytest.raises(
        WireError, match=r"sequence 1 .* loss_mask has 2 at token 2; expected 0 or 1"
    ):
        ReceivedGroup(encode_frame(header, columns))


@pytest.mark.parametrize("field", ["trajectories", "rejected", "late"])
@pytest.mark.parametrize("count", [-1, 2**31])
def test_counts_are_not_negative_and_bounded(field: str, count: int) -> None:
    frame = Frame(pushed())
    header = msgspec.msgpack.decode(frame.header) | {field: count}
    columns = [frame.array(i, d, 8) for i, d in enumerate((np.int32, np.uint8, np.int32, np.int32))]
    with pytest.raises(WireError, match=f"not a GroupHeader: .*{field}"):
        ReceivedGroup(encode_frame(header, columns))


def decoded(body: bytes, tokens: int = 8) -> tuple[Any, list[Any]]:
    frame = Frame(body)
    columns = [
        frame.array(i, d, tokens) for i, d in enumerate((np.int32, np.uint8, np.int32, np.int32))
    ]
    return msgspec.msgpack.decode(frame.header), columns


def test_a_header_has_what_is_documented_and_nothing_more() -> None:
    header, columns = decoded(pushed())
    ReceivedGroup(encode_frame(header, columns))
    long = [[*each, 1] for each in header["sequences"]]
    for wrong, told in (
        (header | {"surprise": 1}, "not a GroupHeader: .*unknown field `surprise`"),
        (header | {"sequences": long}, "not a GroupHeader: .*at most length 7, got 8"),
    ):
        with pytest.raises(WireError, match=told):
            ReceivedGroup(encode_frame(wrong, columns))
    for count in (3, 5):
        with pytest.raises(WireError, match=f"the frame has {count} buffers; 4 were expected"):
            ReceivedGroup(encode_frame(header, (columns + columns[:1])[:count]))


def test_rounding_and_what_was_sampled_and_is_not_trained_pass() -> None:
    edge = np.float32(HIGHEST_LOGPROB) * np.float32(0.999)
    ReceivedGroup(pushed(logprobs=[0, edge, 0, LOWEST_LOGPROB]))
    ReceivedGroup(pushed(loss_mask=[False, False, True, False]))
    for reward in (LARGEST_REWARD, -LARGEST_REWARD, 0.0):
        ReceivedGroup(pushed(reward=reward))


@given(
    st.lists(
        st.lists(st.sampled_from([None, (-1, False), (0, True), (3, False), (3, True), (9, True)])),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=60)
def test_the_smallest_trained_version_of_each_sequence_is_the_announced_one(
    drawn: list[list[tuple[int, bool] | None]],
) -> None:
    sequences, least = [], []
    for tokens in drawn:
        kinds = [(-1, False), *(kind or (-1, False) for kind in tokens)]
        versions, mask = zip(*kinds, strict=True)
        sequences.append(
            Sequence(
                "solver",
                np.arange(len(kinds), dtype=np.int32),
                np.array(mask),
                np.where(np.array(versions) >= 0, -1, 0).astype(np.float32),
                np.array(versions, np.int32),
                1.0,
            )
        )
        least.append(min((version for version, trained in kinds if trained), default=-1))
    body = encode_group(Group("t", "p", tuple(Trajectory((s,)) for s in sequences)), "raas-3")
    header, columns = decoded(body, sum(len(sequence.tokens) for sequence in sequences))
    assert [sequence.min_version for sequence in ReceivedGroup(body).header.sequences] == least
    for sequence in header["sequences"]:
        sequence[5] += 1
        with pytest.raises(WireError, match="min_version is"):
            ReceivedGroup(encode_frame(header, columns))
        sequence[5] -= 1


def test_the_bounds_are_what_float32_holds() -> None:
    with np.errstate(over="raise"):
        np.square(np.exp(np.float32(-LOWEST_LOGPROB)))
        np.square(np.float32(LARGEST_REWARD * MAX_SEQUENCES))
    with np.errstate(over="ignore"):
        assert np.isinf(np.square(np.exp(np.float32(1 - LOWEST_LOGPROB))))


def test_rounding_of_engines_stays_within_the_tolerance() -> None:
    """``logit / temperature - logsumexp`` in float32, the worst of the usual orders of its steps."""
    generator = np.random.default_rng(0)
    worst = 0.0
    for temperature in (0.01, 0.1, 0.7, 1.0, 1.3):
        logits = generator.normal(0, 12, (400, 512)).astype(np.float32)
        warm, inverse = logits / np.float32(temperature), np.float32(1 / temperature)
        top = warm.max(-1, keepdims=True)
        total = top + np.log(np.exp(warm - top).sum(-1, keepdims=True))
        for chosen in (warm, logits * inverse):
            worst = max(worst, float((chosen - total).max()))
    assert 0 < worst < HIGHEST_LOGPROB


def test_ids_and_lengths_fit_the_model_of_their_policy() -> None:
    group = ReceivedGroup(pushed(tokens=[7, 8, 30, 10]))
    check_limits(group, {"solver": ModelLimits(31, 4)})
    who = "RaaS 'raas-3', sequence 1 of policy 'solver': "
    with pytest.raises(WireError, match=f"{who}tokens has the id 30; .* below 30"):
        check_limits(group, {"solver": ModelLimits(30, 4)})
    with pytest.raises(WireError, match=r"sequence 0 .*: length is 4; the context .* has 3 tokens"):
        check_limits(group, {"solver": ModelLimits(31, 3)})


def test_each_policy_has_limits_of_its_own() -> None:
    large = replace(SOUND, policy="judge", tokens=SOUND.tokens + 100)
    both = (Trajectory((SOUND, large), rewards={"solver": 0.0, "judge": 0.0}),)
    group = ReceivedGroup(encode_group(Group("t", "p", both), "raas-3"))
    check_limits(group, {"solver": ModelLimits(11, 4), "judge": ModelLimits(111, 4)})
    with pytest.raises(WireError, match="sequence 1 of policy 'judge': tokens has the id 110"):
        check_limits(group, {"solver": ModelLimits(500, 4), "judge": ModelLimits(110, 4)})


def test_an_empty_group_has_nothing_to_refuse() -> None:
    group = ReceivedGroup(encode_group(Group("t", "p", ()), "raas-3"))
    assert isinstance(group.header, GroupHeader)
    check_limits(group, {})


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"vocab_size": 27, "max_position_embeddings": 64}, ModelLimits(27, 64)),
        ({"text_config": {"vocab_size": 5, "max_position_embeddings": 8}}, ModelLimits(5, 8)),
        ({"vocab_size": 27, "n_positions": 1024}, ModelLimits(27, 1024)),
        (
            {"max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            ModelLimits(MOST, 128),
        ),
        (
            {
                "max_position_embeddings": 128,
                "rope_parameters": {"factor": 8.0, "original_max_position_embeddings": 8},
            },
            ModelLimits(MOST, 128),
        ),
        ({"vocab_size": "27", "max_position_embeddings": -1}, ModelLimits()),
        ({"vocab_size": True, "rope_scaling": {"factor": "x"}}, ModelLimits()),
        ([], ModelLimits()),
    ],
)
def test_limits_are_read_from_a_models_folder(
    tmp_path: Path, config: Any, limits: ModelLimits
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ModelLimits.of(tmp_path) == limits


def test_a_folder_that_cannot_be_read_bounds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert ModelLimits.of(tmp_path / "absent") == ModelLimits()
    assert "the limits of the model in" in caplog.text
    (tmp_path / "config.json").write_bytes(b"\xff[" * 9)
    assert ModelLimits.of(tmp_path) == ModelLimits()
