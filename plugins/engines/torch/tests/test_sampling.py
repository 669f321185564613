from __future__ import annotations

import numpy as np
import pytest
import torch

from astraflow_plugin_torch_engine.sampling import points, sample, stream_keys, truncate

ROW = [
    ("temperature", "f4"), ("top_p", "f4"), ("top_k", "i8"), ("min_p", "f4"), ("stream", "u8"), ("count", "i8"),
]  # fmt: skip


def rows(*settings: tuple[float, float, int, float]) -> np.ndarray:
    """Each with a stream of its own, at its first number."""
    streams = stream_keys(0, np.arange(len(settings)))
    return np.array([(*each, key, 0) for each, key in zip(settings, streams, strict=True)], ROW)


def kept_reference(
    logits: np.ndarray, temperature: float, top_p: float, top_k: int, min_p: float
) -> np.ndarray:
    """Token by token in float64: what may be sampled, with its renormalised probability."""
    p = np.exp((logits - logits.max()) / temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = list(order[:top_k] if top_k else order)
    total = p[kept].sum()
    nucleus, mass = [], 0.0
    for token in kept:
        if mass >= top_p * total and top_p < 1 and nucleus:
            break
        nucleus.append(token)
        mass += p[token]
    final = [token for token in nucleus if p[token] >= min_p * p.max()]
    out = np.zeros_like(p)
    out[final] = p[final] / p[final].sum()
    return out


SETTINGS = [
    (1.0, 1.0, 0, 0.0), (0.6, 1.0, 0, 0.0), (1.0, 0.7, 0, 0.0), (1.0, 1.0, 3, 0.0),
    (1.5, 1.0, 0, 0.2), (1.2, 0.8, 6, 0.05), (1.0, 0.01, 0, 0.0), (1.0, 1.0, 1, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_frequencies_are_those_of_the_truncated_distribution(
    setting: tuple[float, float, int, float],
) -> None:
    draws = 40_000
    logits = np.random.default_rng(3).normal(0, 1.5, 12)
    expected = kept_reference(logits, *setting)
    batch = torch.tensor(logits, dtype=torch.float32).expand(draws, -1)
    tokens, logprobs = sample(batch, rows(*[setting] * draws))
    counts = np.bincount(tokens.numpy(), minlength=12)
    assert counts[expected == 0].sum() == 0
    inside = expected > 0
    chi2 = ((counts - draws * expected)[inside] ** 2 / (draws * expected[inside])).sum()
    # Above the 0.9999 quantile of chi-square for up to 11 degrees of freedom.
    assert chi2 < 38
    scaled = logits / setting[0]
    raw = scaled - np.log(np.exp(scaled).sum())
    np.testing.assert_allclose(logprobs.numpy(), raw[tokens.numpy()], atol=1e-5)


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (len(SETTINGS), 20))
    setting = rows(*SETTINGS)
    scaled = torch.tensor(logits / setting["temperature"][:, None], dtype=torch.float64)
    kept = truncate(scaled.softmax(-1).float(), setting).numpy()
    for row, one in enumerate(SETTINGS):
        expected = kept_reference(logits[row], *one)
        np.testing.assert_allclose(kept[row] / kept[row].sum(), expected, atol=1e-6)


def test_greedy_rows_beside_sampled_ones() -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(1))
    setting = rows(*[(0.0, 0.5, 2, 0.1), (2.0, 1.0, 0, 0.0)] * 25)
    tokens, logprobs = sample(logits, setting)
    assert tokens[::2].tolist() == logits[::2].argmax(-1).tolist()
    assert tokens[1::2].tolist() != logits[1::2].argmax(-1).tolist()
    raw = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    np.testing.assert_allclose(logprobs[::2], raw[::2], atol=1e-6)


def test_points_are_those_of_splitmix64_and_of_nothing_but_stream_and_place() -> None:
    # The first numbers of the reference implementation with seed 1234567 (Vigna, splitmix64.c).
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    found = points(np.full(4, 1234567, np.uint64), np.arange(4))
    assert found.tolist() == [(number >> 11) * 2.0**-53 for number in published]
    keys = stream_keys(5, np.arange(1000))
    assert len(set(keys.tolist())) == 1000
    assert stream_keys(5, np.array([7]))[0] == keys[7] != stream_keys(6, np.array([7]))[0]
    # Uniform across streams at one place, and across places of one stream.
    for each in (points(keys, np.full(1000, 3)), points(np.full(1000, keys[0]), np.arange(1000))):
        counts = np.histogram(each, bins=10, range=(0, 1))[0]
        assert (
            (counts - 100) ** 2 / 100
        ).sum() < 34  # the 0.9999 quantile for 9 degrees of freedom
