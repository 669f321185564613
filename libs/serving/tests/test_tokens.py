"""What a request has to be before it goes anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_serving.tokens import check_request


@pytest.mark.parametrize(
    ("prompt", "tokens", "said"),
    [
        ((5, 68, 3), 4, "'r' has the token id 68, outside of the model's 0 to 26: the tokenizer"),
        ((5, -1), 4, "the token id -1, outside"),
        ((), 4, "no tokens"),
        ((5,) * 30, 4, "30 tokens \\+ 4 to sample exceed the context length of 32"),
        ((5,), 0, "max_tokens must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    prompt: tuple[int, ...], tokens: int, said: str
) -> None:
    request = GenerateRequest("r", np.array(prompt, np.int32), Sampling(tokens))
    with pytest.raises(ValueError, match=said):
        check_request(request, context_length=32, vocabulary=27)


def test_what_fits_is_let_through() -> None:
    request = GenerateRequest("r", np.array((0, 26), np.int32), Sampling(30))
    check_request(request, context_length=32, vocabulary=27)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"stop_token_ids": (3, 2**40)},
            f"'r': stop_token_ids has the token id {2**40}; .*0 to 26",
        ),
        ({"stop_token_ids": (27,)}, "stop_token_ids has the token id 27; .*0 to 26"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids has the token id -1"),
        ({"stop_token_ids": (3,) * 65}, "stop_token_ids has 65 entries; expected at most 64"),
        ({"stop_sequences": ((3, 27),)}, "stop_sequences has the token id 27"),
        ({"stop_sequences": ((3, 4),) * 65}, "stop_sequences has 65 entries; expected at most 64"),
        ({"stop_sequences": ((3,) * 257,)}, "one of 257 tokens; expected at most 256"),
        ({"top_k": 2**63}, f"top_k is {2**63}; expected 0 to {2**31 - 1}"),
        ({"top_k": -1}, "top_k is -1"),
        ({"temperature": float("nan")}, "temperature is nan; expected 0 to"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 1.5}, "top_p is 1.5; expected 0 to 1"),
        ({"min_p": -0.5}, "min_p is -0.5"),
    ],
)
def test_sampling_outside_of_what_engines_take_is_refused_with_what_is_allowed(
    asked: dict[str, Any], said: str
) -> None:
    request = GenerateRequest("r", np.array((5,), np.int32), Sampling(4, **asked))
    with pytest.raises(ValueError, match=said):
        check_request(request, context_length=32, vocabulary=27)


def test_sampling_at_the_bounds_is_let_through() -> None:
    stops = {"stop_token_ids": (0, 26) * 32, "stop_sequences": ((26,) * 256,) * 64}
    sampling = Sampling(4, 0.0, 0.0, 2**31 - 1, 1.0, **stops)  # type: ignore[arg-type]
    request = GenerateRequest("r", np.array((5,), np.int32), sampling)
    check_request(request, context_length=32, vocabulary=27)
