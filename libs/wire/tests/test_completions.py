"""The push body made of lists of tokens, read back and against the one made of trajectories."""

from __future__ import annotations

import numpy as np
import pytest

from astraflow_wire.completions import Sampled, encode_completions
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.messages import SamplingMessage, Task

TASK = Task(
    id="t-7",
    prompt_id="p-3",
    data={},
    group_size=2,
    sampling=SamplingMessage(max_tokens=4),
    lease_s=1.0,
    deadline_s=1.0,
    eval_set="held_out",
)


def test_what_was_sampled_is_trained_and_the_prompt_is_not() -> None:
    episodes = [
        Sampled([7, 8], [-0.5, -0.25], [3, 4], 1.0),
        Sampled(np.array([9]), np.array([-1.5]), np.array([4]), 0.25, truncated=True),
    ]
    group = ReceivedGroup(
        encode_completions("mine", TASK, "solver", [1, 2, 3], episodes, incarnation=3)
    )
    header = group.header
    assert (header.raas, header.task, header.prompt_id) == ("mine", "t-7", "p-3")
    assert (header.eval_set, header.trajectories, header.rejected) == ("held_out", 2, 0)
    assert [tuple(getattr(s, f) for f in s.__struct_fields__) for s in header.sequences] == [
        ("solver", 5, 1.0, 0, False, 3, False),
        ("solver", 4, 0.25, 1, True, 4, False),
    ]
    assert group.tokens.tolist() == [1, 2, 3, 7, 8, 1, 2, 3, 9]
    assert group.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1]
    assert group.logprobs.tolist() == [0, 0, 0, -0.5, -0.25, 0, 0, 0, -1.5]
    assert group.versions.tolist() == [-1, -1, -1, 3, 4, -1, -1, -1, 4]


def test_columns_of_two_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 1, 2\]"):
        encode_completions(
            "mine", TASK, "solver", [1], [Sampled([7, 8], [-0.5], [0, 0], 0.0)], incarnation=1
        )


@pytest.mark.parametrize(
    "wrong",
    [
        Sampled([7, 2**40], [-0.5, -1], [0, 0], 0.0),
        Sampled([7, 8], [-0.5, -1], [0, 2**31], 0.0),
        Sampled([7, {}], [-0.5, -1], [0, 0], 0.0),  # type: ignore[list-item]
    ],
)
def test_what_is_no_number_of_its_column_is_refused(wrong: Sampled) -> None:
    with pytest.raises(ValueError, match="not a number of the type of its column"):
        encode_completions("mine", TASK, "solver", [1], [wrong], incarnation=1)
