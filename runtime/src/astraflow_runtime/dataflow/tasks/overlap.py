"""Overlap of evaluation sets with the training prompts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import xxhash

from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import Prompt

_encode = msgspec.json.Encoder(enc_hook=repr).encode


class Overlap:
    """Compares the content of prompts, regardless of their ids and files."""

    def __init__(self, sets: Mapping[str, PromptSource]) -> None:
        self._sizes = {name: len(source) for name, source in sets.items()}
        self._sets_of: dict[int, set[str]] = {}
        for name, source in sets.items():
            for index in range(len(source)):
                self._sets_of.setdefault(_fingerprint(source[index]), set()).add(name)
        self._met: dict[str, set[int]] = {name: set() for name in sets}

    def note(self, prompt: Prompt) -> list[str]:
        """A prompt is rolled out for training; returns the sets for which it is the first such
        prompt.
        """
        if not self._sets_of:
            return []
        fingerprint = _fingerprint(prompt)
        first = []
        for name in sorted(self._sets_of.get(fingerprint, ())):
            if not self._met[name]:
                first.append(name)
            self._met[name].add(fingerprint)
        return first

    def counts(self) -> dict[str, dict[str, int]]:
        """For each set: how many of its distinct prompts were rolled out for training
        (``trained_on``), and its size.
        """
        return {
            name: {"trained_on": len(self._met[name]), "prompts": size}
            for name, size in self._sizes.items()
        }


def _fingerprint(prompt: Prompt) -> int:
    # The source ``merged`` records in the data which of its sources a prompt is from.
    data = sorted((str(key), value) for key, value in prompt.data.items() if key != "source")
    return xxhash.xxh3_64_intdigest(_encode(data))
