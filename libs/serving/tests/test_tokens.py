"""What a request has to be before it goes anywhere."""

from __future__ import annotations

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
