"""Log-probs and entropy against float64 numpy, and the same however many chunks there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from astraflow_torch_training.logprobs import logit_gradients, token_logprobs


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 3 * 7, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropy_are_those_of_the_whole_softmax(
    at_once: int, temperature: float
) -> None:
    rng = np.random.default_rng(5)
    hidden, weight = rng.normal(size=(10, 4)), rng.normal(size=(7, 4))
    targets = rng.integers(0, 7, size=10)
    logits = hidden @ weight.T / temperature
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    head = torch.nn.Linear(4, 7, bias=False)
    head.weight.data = torch.from_numpy(weight).float()
    given = torch.from_numpy(hidden).float().requires_grad_()

    logprobs, entropy = token_logprobs(
        head, given, torch.from_numpy(targets), temperature, 7, True, at_once
    )

    np.testing.assert_allclose(logprobs.detach(), expected[np.arange(10), targets], atol=1e-5)
    assert entropy is not None
    np.testing.assert_allclose(
        entropy.detach(), -(np.exp(expected) * expected).sum(axis=1), atol=1e-5
    )
    away = np.eye(7)[targets] - np.exp(expected)
    squares = logit_gradients(head, given, torch.from_numpy(targets), temperature, 7, at_once)
    np.testing.assert_allclose(squares, np.square(away).sum(axis=1), atol=1e-6)
    assert not squares.requires_grad
    logprobs.sum().backward()
    assert given.grad is not None
    np.testing.assert_allclose(given.grad, away @ weight / temperature, atol=1e-5)
