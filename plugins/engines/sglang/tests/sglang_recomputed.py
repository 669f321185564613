"""What the log-probs of requests have to be that a pause retracted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance.engine import Reference


def recomputed(model: Path) -> Reference:
    """For the fixture ``reference`` of the engine suite: keys and values of what came before a swap are those of the
    weights after it."""

    def logits(prompt: qwen3.Ids, tokens: qwen3.Ids, files: Sequence[Path]) -> qwen3.Floats:
        fed = np.concatenate([prompt, tokens[:-1]])
        parts, start = [], len(prompt) - 1
        for file, group in groupby(files):
            end = start + len(list(group))
            parts.append(qwen3.logits(model, [(file, fed[:end])])[start:])
            start = end
        return np.concatenate(parts)

    return logits
