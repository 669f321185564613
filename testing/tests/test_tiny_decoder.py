"""The decoder of stand-ins, against the forward pass of a whole sequence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from astraflow_core.types import Sampling
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.tiny_decoder import TinyDecoder
from astraflow_tiny_model.folder import write_tiny_model


def model(tmp_path: Path, seed: int) -> Path:
    return write_tiny_model(tmp_path / str(seed), hidden=32, init_std=0.3, seed=seed)


def test_logprobs_are_those_of_the_whole_sequence_under_the_weights_of_each_token(
    tmp_path: Path,
) -> None:
    first, second = model(tmp_path, 0), model(tmp_path, 1)
    decoder = TinyDecoder(first)
    sequence = decoder.sequence([5, 9, 3])
    drawn = [sequence.next(Sampling(8)) for _ in range(4)]
    decoder.load(second / "model.safetensors")
    drawn += [sequence.next(Sampling(8)) for _ in range(4)]
    ids = np.array(sequence.tokens, np.int32)
    parts = [(first / "model.safetensors", ids[:6]), (second / "model.safetensors", ids[6:-1])]
    logprobs = qwen3.log_softmax(qwen3.logits(first, parts)[2:])
    expected = logprobs[np.arange(8), ids[3:]]
    np.testing.assert_allclose([d.raw for d in drawn], expected, atol=1e-9)
    sequence.forget()
    again = sequence.next(Sampling(1, temperature=0))
    fresh = qwen3.logits(second, [(second / "model.safetensors", ids)])[-1]
    assert again.token == fresh.argmax()
    assert again.raw == pytest.approx(qwen3.log_softmax(fresh).max())


def test_truncation_and_temperature_are_in_the_processed_logprobs(tmp_path: Path) -> None:
    decoder = TinyDecoder(model(tmp_path, 0))
    logits = np.log(np.array([0.5, 0.3, 0.2]))
    seen = {decoder.draw(logits, Sampling(1, top_k=2)).token for _ in range(50)}
    assert seen == {0, 1}
    drawn = decoder.draw(logits, Sampling(1, top_k=1, temperature=0.5))
    assert (drawn.token, drawn.processed) == (0, 0.0) and drawn.raw == pytest.approx(np.log(0.5))
    weights = np.array([0.5, 0.3, 0.2]) ** 2
    assert drawn.tempered == pytest.approx(np.log(weights[0] / weights.sum()))
