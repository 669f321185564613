"""Decoding of a tiny model in float64 numpy, for stand-ins of servers that cannot run where tests do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from astraflow_core.types import Sampling
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_rig import allowed_tokens
from astraflow_testing.conformance._models.weights import read_floats


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sampled token with its log-prob under the raw logits, after division by the temperature, and under
    what it was sampled from (temperature and truncation applied)."""

    token: int
    raw: float
    tempered: float
    processed: float


class TinyDecoder:
    """A model of :func:`astraflow_tiny_model.folder.write_tiny_model`, and the weights it has now."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.load(folder / "model.safetensors")
        self._random = np.random.default_rng(seed)

    def load(self, file: Path) -> None:
        """Compute with the weights of ``file`` from now on; sequences keep the keys and values they have."""
        self._weights = read_floats(file)

    def sequence(self, prompt: list[int]) -> DecodedSequence:
        """A sequence of which nothing is computed yet."""
        return DecodedSequence(self, prompt)

    def draw(self, logits: qwen3.Floats, sampling: Sampling) -> Drawn:
        """Choose a token from logits ``[V]``."""
        raw = qwen3.log_softmax(logits)
        if sampling.temperature == 0:
            token = int(logits.argmax())
            likeliest = float(raw[token])
            return Drawn(token, likeliest, likeliest, likeliest)
        kept = allowed_tokens(logits[None], sampling, slack=0.0)[0]
        scaled = logits / sampling.temperature
        tempered = qwen3.log_softmax(scaled)
        processed = qwen3.log_softmax(np.where(kept, scaled, -np.inf))
        token = int(self._random.choice(len(logits), p=np.exp(processed)))
        return Drawn(token, float(raw[token]), float(tempered[token]), float(processed[token]))

    def logits(self, ids: list[int], cache: qwen3.KeysAndValues) -> qwen3.Floats:
        """Logits ``[N, V]`` after each of ``ids``, which follow what ``cache`` holds; it is extended."""
        read = np.array(ids, np.int32)
        inputs = self._weights["model.embed_tokens.weight"][read]
        return qwen3.embedded_logits(
            self.config, self._weights, inputs, cache, qwen3.ExpertChoice()
        )


class DecodedSequence:
    """Tokens, and the keys and values of all but those that are not computed yet."""

    def __init__(self, decoder: TinyDecoder, tokens: list[int]) -> None:
        self.tokens = list(tokens)
        self._decoder = decoder
        self._cache: qwen3.KeysAndValues = {}
        self._computed = 0

    def next(self, sampling: Sampling) -> Drawn:
        """Sample one token more."""
        logits = self._decoder.logits(self.tokens[self._computed :], self._cache)[-1]
        self._computed = len(self.tokens)
        drawn = self._decoder.draw(logits, sampling)
        self.tokens.append(drawn.token)
        return drawn

    def forget(self) -> None:
        """Drop keys and values; they are computed again with the weights at that time."""
        self._cache, self._computed = {}, 0

    def scores(self) -> list[float]:
        """Raw log-probs of the tokens, each given those before it; the first has none."""
        logprobs = qwen3.log_softmax(self._decoder.logits(self.tokens, {}))
        return [float(row[token]) for row, token in zip(logprobs, self.tokens[1:], strict=False)]
