"""Results of the public protocol become the sequences that they say, or are refused by what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astraflow_contrib_compat.raas.results import ForeignResults, WrongResult
from astraflow_contrib_compat.raas.session import enumerate_models
from astraflow_contrib_compat.raas.submissions import UnsupportedSampling, gconfig
from astraflow_wire.messages import SamplingMessage

VERSIONS = {("solver", 1): 0, ("solver", 2): 7, ("verifier", 1): 4}
ONE = ForeignResults({0: "solver"}, lambda policy, number: VERSIONS[policy, number])
TWO = ForeignResults({0: "solver", 1: "verifier"}, lambda policy, number: VERSIONS[policy, number])


def sequence(**changed: Any) -> dict[str, Any]:
    return {
        "input_ids": [[5, 6, 7, 8, 0]], "loss_mask": np.array([[0, 0, 1, 1, 0]]),
        "logprobs": [0.0, 0.0, -0.5, -0.25, 0.0], "versions": np.array([-1, -1, 1, 2, 0], np.int64),
        "attention_mask": np.array([[1, 1, 1, 1, 0]], bool), **changed,
    }  # fmt: skip


def result(*sequences: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "n_trajs": 1,
        "rewards": [0.5],
        "trajectories": [{"sequences": list(sequences)}],
        **changed,
    }


def test_a_sequence_loses_its_padding_and_gets_our_versions() -> None:
    (trajectory,) = ONE.trajectories(result(sequence(), agent_metrics={"turns": 3, "x": "y"}), 4)
    (found,) = trajectory.sequences
    assert found.policy == "solver" and found.tokens.tolist() == [5, 6, 7, 8]
    assert found.loss_mask.tolist() == [False, False, True, True]
    assert found.versions.tolist() == [-1, -1, 0, 7] and found.logprobs[3] == -0.25
    assert found.tokens.dtype == found.versions.dtype == np.int32
    assert trajectory.rewards == {"solver": 0.5} and trajectory.metrics == {"turns": 3.0}


def test_padding_on_the_left() -> None:
    told = sequence(attention_mask=[0, 1, 1, 1, 0], versions=[0, -1, 1, 2, 0])
    (trajectory,) = ONE.trajectories(result(told), 4)
    assert trajectory.sequences[0].tokens.tolist() == [6, 7, 8]


def test_two_models_in_one_sequence_train_their_own_tokens() -> None:
    told = sequence(model_ids=[-1, -1, 0, 1, -1], versions=[-1, -1, 1, 1, 0])
    (trajectory,) = TWO.trajectories(result(told), 4)
    solver, verifier = trajectory.sequences
    assert (solver.policy, verifier.policy) == ("solver", "verifier")
    assert solver.loss_mask.tolist() == [False, False, True, False]
    assert verifier.loss_mask.tolist() == [False, False, False, True]
    assert trajectory.rewards == {"solver": 0.5, "verifier": 0.5}
    assert enumerate_models({"b": "model1", "a": "model0"}) == [(1, "b"), (0, "a")]


def test_rewards_of_sequences_count_where_they_differ() -> None:
    same = ONE.trajectories(result(sequence(rewards=[0.5]), sequence()), 4)[0]
    assert [each.reward for each in same.sequences] == [None, None]
    own = ONE.trajectories(result(sequence(rewards=np.array([0.25])), sequence(rewards=[0.5])), 4)[
        0
    ]
    assert [each.reward for each in own.sequences] == [0.25, 0.5]


WRONG: dict[str, tuple[Any, str]] = {
    "no dict": ([1], "expected a dict"),
    "the flat form of the documents": ({"input_ids": [1], "output_ids": [2]}, "n_trajs, rewards"),
    "a failure": ({"ok": False, "error": "boom"}, "failed there: boom"),
    "too many": (result(sequence()) | {"n_trajs": 5, "rewards": [0.0] * 5, "trajectories": [{}] * 5}, "only 4 were requested"),
    "a count that lies": (result(sequence(), n_trajs=2), "n_trajs is 2"),
    "rewards that are text": (result(sequence(), rewards=["high"]), "rewards must be one row"),
    "no sequences": (result(), "without sequences"),
    "a sequence that is none": ({**result(), "trajectories": [{"sequences": [1]}]}, "not a dict"),
    "a short column": (result(sequence(logprobs=[0.0])), "one length"),
    "an absent column": (result(sequence(versions=None)), "versions must be"),
    "two rows": (result(sequence(input_ids=np.ones((2, 5)))), "its shape is (2, 5)"),
    "ragged rows": (result(sequence(input_ids=[[1], [2, 3]])), "input_ids must be"),
    "half a token": (result(sequence(input_ids=[0.5] * 5)), "whole numbers"),
    "a token of 40 bits": (result(sequence(input_ids=[1 << 40] * 5)), "32 bits"),
    "a mask of twos": (result(sequence(loss_mask=[2] * 5)), "0 or 1"),
    "a hole": (result(sequence(attention_mask=[1, 0, 1, 1, 1])), "one run of ones"),
    "nothing attended": (result(sequence(attention_mask=[0] * 5)), "one run of ones"),
    "an unknown version": (result(sequence(versions=[-1, -1, 3, 3, 0])), "version 3, which was not"),
    "an unknown model": (result(sequence(model_ids=[4] * 5)), "model_ids has 4"),
    "no model": (result(sequence(model_ids=[-1] * 5)), "names no model"),
    "two rewards": (result(sequence(rewards=[1.0, 2.0])), "2 rewards"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    told, reason = WRONG[name]
    with pytest.raises(WrongResult, match=r".") as refused:
        ONE.trajectories(told, 4)
    assert reason in str(refused.value)


def test_several_models_need_their_numbers() -> None:
    with pytest.raises(WrongResult, match="needs model_ids"):
        TWO.trajectories(result(sequence()), 4)


def test_sampling_in_the_words_of_the_protocol() -> None:
    plain = gconfig(SamplingMessage(max_tokens=9, temperature=0.7), 4, "n_samples")
    assert plain == {"n_samples": 4, "max_new_tokens": 9, "temperature": 0.7}
    more = gconfig(
        SamplingMessage(max_tokens=1, temperature=0, top_p=0.5, top_k=3, stop=["x"]), 1, "n"
    )
    assert (
        more["greedy"] is True
        and more["top_p"] == 0.5
        and more["top_k"] == 3
        and more["stop"] == ["x"]
    )
    with pytest.raises(UnsupportedSampling, match="min_p"):
        gconfig(SamplingMessage(max_tokens=1, min_p=0.1), 1, "n")
