"""A toy that samples, for the rollout service beside it: a table of logits, without any framework.

    python table_engine.py FOLDER

writes a model for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from safetensors.numpy import load, save_file

from astraflow_testing.table import POSITIONS
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model
from astraflow_wire import messages
from astraflow_wire.http import auth

Samples = tuple[list[int], list[float], list[int]]


class TableEngine:
    """Token `t` of a completion comes from `softmax(logits[t])`, whatever the prompt, as the trainer
    `astraflow_testing.table:TableTrainer` learns it. `logits` float `[positions, vocabulary]`."""

    context = 128

    def __init__(self, model: Path) -> None:
        self.vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        self.texts = {token: text for text, token in self.vocabulary.items()}
        self.end = json.loads((model / "config.json").read_text())["eos_token_id"]
        self.logits, self.version = np.zeros((1, len(self.vocabulary))), -1
        self.random = np.random.default_rng()

    def encode(self, text: str) -> list[int]:
        """Token ids; ValueError for a character that the model does not know."""
        if unknown := set(text) - set(self.vocabulary):
            raise ValueError(f"the tokenizer has no token for {sorted(unknown)}")
        return [self.vocabulary[character] for character in text]

    def decode(self, tokens: list[int]) -> str:
        """Text without the end of sequence."""
        return "".join(self.texts[token] for token in tokens if token != self.end)

    async def generate(self, prompt: list[int], sampling: messages.SamplingMessage) -> Samples:
        """Tokens, their log-probs at the temperature, and for each the version that sampled it."""
        if len(prompt) + sampling.max_tokens > self.context:
            raise ValueError(
                f"{len(prompt)} prompt tokens + max_tokens {sampling.max_tokens} are over the context of "
                f"{self.context}"
            )
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        while len(tokens) < sampling.max_tokens and self.end not in tokens[-1:]:
            await asyncio.sleep(0)  # others take their turn; weights may change between two tokens
            row = self.logits[min(len(tokens), len(self.logits) - 1)]
            scaled = row / (sampling.temperature or 1.0)
            scaled = scaled - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())
            greedy = sampling.temperature == 0
            token = int(row.argmax() if greedy else self.random.choice(len(row), p=np.exp(scaled)))
            tokens.append(token)
            logprobs.append(float(scaled[token]))
            versions.append(self.version)
        return tokens, logprobs, versions

    def load(self, entry: messages.AnnouncementMessage, token: str) -> np.ndarray:
        """The logits of an announced version by the transport `http`, verified by the announced digest; blocks
        its thread. OSError or ValueError if the version is not there, complete and verified."""

        def get(url: str, what: str, ranged: dict[str, str]) -> bytes:
            url = f"{url}/v1/weights/{entry.policy}/{entry.version}/{what}"
            headers = {**auth.bearer(token), **ranged}
            request = urllib.request.Request(url, headers=headers)  # noqa: S310
            try:
                with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                    return bytes(response.read())
            except HTTPException as error:  # the publisher ended in the middle of its answer
                raise OSError(f"{url}: {type(error).__name__}: {error}") from error

        publisher = entry.endpoints[0]
        manifest = msgspec.msgpack.decode(get(publisher, "manifest", {}))
        size, data = manifest["block_size"], bytearray(manifest["size"])
        alone = [{"url": publisher, "runs": [[0, len(manifest["blocks"])]]}]
        for source in manifest.get("sources") or alone:
            for first, last in source["runs"]:
                start, stop = first * size, min(last * size, len(data))
                ranged = {"Range": f"bytes={start}-{stop - 1}"}
                data[start:stop] = get(source["url"], "data", ranged)
        cut = [data[at : at + size] for at in range(0, len(data), size)]
        digest = xxhash.xxh3_128_hexdigest(b"".join(map(xxhash.xxh3_128_digest, cut)))
        if digest != entry.digest:
            raise ValueError(f"version {entry.version} has digest {digest}, not {entry.digest}")
        tensors = load(bytes(data))
        if "logits" not in tensors:
            raise ValueError(
                f"this toy serves a table `logits`; the model has {sorted(tensors)[:3]}"
            )
        return np.asarray(tensors["logits"], np.float64)


def write_model(folder: Path) -> None:
    """A table as a model folder: tokenizer, config, and `logits` drawn at random."""
    write_tiny_model(folder, hidden=8, layers=1, heads=1, kv_heads=1)
    logits = np.random.default_rng(0).normal(0, 1.5, (POSITIONS, len(ALPHABET)))
    save_file({"logits": logits.astype(np.float32)}, folder / "model.safetensors")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
