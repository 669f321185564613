"""What ``layout = "tree"`` of the trainer `torch` saves on episodes of many turns with branches.

`GROUPS` tasks, each played by `EPISODES` agents in `TURNS` turns; in each turn `TRIES` actions are sampled and one is
continued. A row is the whole history up to an action that was not continued, or to the end; each sampled token is trained in
one row. `token_ratio`: tokens computed with ``layout = "bucketed"``, padding included, over those with trees.
`speedup`: CPU seconds of a step with the loss `grpo`, the same way; medians of interleaved pairs. `gradient_difference`: the
largest difference of the two gradients, over the largest gradient. `prompt_speedup` and `prompt_token_ratio`: the same of
single answers to long prompts, `SAMPLES` of each. `alone_speedup`: of rows that share nothing, where it should be 1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.types import Batch
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.conformance.subject import context
from astraflow_testing.stamping import stamped
from bench.support.timing import interleaved, ratio, spread
from bench.trainers import cpu_s, prepared

MODEL = "tiny:qwen3?hidden=256&layers=2&heads=4&kv_heads=2&head_dim=64&ffn=768&context=1024"
GROUPS, EPISODES, TURNS, TRIES = 1, 2, 8, 3
PROMPT, SEEN, SAID = 64, 20, 12
"""Tokens of a task, of what an environment says, and of an action."""
SAMPLES, LONG_PROMPT, ANSWER = 8, 200, 24
WORDS = 27
LR = 1e-6

Tokens = npt.NDArray[np.int64]
Clock = Callable[[Callable[[], object]], Callable[[], float]]
Row = tuple[Tokens, npt.NDArray[np.bool_]]
"""Tokens, and which of them are trained."""


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring, with the spread (interquartile range over median) of the pairs."""
    torch.set_num_threads(1)
    pairs = 3 if quick else 9
    with tempfile.TemporaryDirectory() as scratch:
        bench = Layouts(Path(scratch))
        found = bench.compared(episodes(np.random.default_rng(0)), pairs)
        prompts = bench.compared(answers(np.random.default_rng(0)), pairs)
        alone = bench.compared(unrelated(np.random.default_rng(0)), pairs)
    return {
        **found,
        "prompt_token_ratio": prompts["token_ratio"],
        "prompt_speedup": prompts["speedup"],
        "alone_speedup": alone["speedup"],
    }


def episodes(generator: np.random.Generator) -> list[Row]:
    """Of all tasks."""
    rows: list[Row] = []
    for _ in range(GROUPS):
        prompt = generator.integers(2, WORDS, PROMPT)
        for _ in range(EPISODES):
            tokens, trained = prompt, np.zeros(PROMPT, bool)
            for turn in range(TURNS):
                tokens = np.concatenate([tokens, generator.integers(2, WORDS, SEEN)])
                trained = np.concatenate([trained, np.zeros(SEEN, bool)])
                history, kept = np.zeros(len(tokens), bool), tokens
                for number in range(TRIES):
                    action = generator.integers(2, WORDS, SAID)
                    action[0] = 2 + number  # no two begin alike
                    whole = np.concatenate([tokens, action])
                    if number or turn == TURNS - 1:
                        mask = history if number else trained
                        rows.append((whole, np.concatenate([mask, np.ones(SAID, bool)])))
                    else:
                        kept = whole
                if turn < TURNS - 1:
                    tokens, trained = kept, np.concatenate([trained, np.ones(SAID, bool)])
    return rows


def answers(generator: np.random.Generator) -> list[Row]:
    """Samples of long prompts."""
    prompts = [generator.integers(2, WORDS, LONG_PROMPT) for _ in range(GROUPS)]
    mask = np.arange(LONG_PROMPT + ANSWER) >= LONG_PROMPT
    return [
        (np.concatenate([prompt, generator.integers(2, WORDS, ANSWER)]), mask)
        for prompt in prompts
        for _ in range(SAMPLES)
    ]


def unrelated(generator: np.random.Generator) -> list[Row]:
    """Rows of different lengths without a common beginning."""
    found = []
    for _ in range(GROUPS * SAMPLES):
        tokens = generator.integers(2, WORDS, int(generator.integers(150, 250)))
        found.append((tokens, np.arange(len(tokens)) >= 50))
    return found


class Layouts:
    """The trainers of both layouts on ``device``, from the same weights of ``model``; what ``clock`` makes of a step measures it."""

    def __init__(
        self, place: Path, model: str = MODEL, device: str = "cpu", clock: Clock = cpu_s
    ) -> None:
        catalog = Catalog.discover()
        folder = ModelResolver(catalog).resolve_model(model, 0, cache_folder())
        self._clock = clock

        def built(kind: str, use: str, **keys: Any) -> Any:
            selected, config = catalog.validate_options(kind, use, keys, use)
            return selected.build(config, context("trainer", place))

        self._algorithm = built("algorithm", "grpo")
        self._trainers = [
            built("trainer", "torch", device=device, lr=LR, layout=layout)
            for layout in ("bucketed", "tree")
        ]
        for trainer in self._trainers:
            trainer.setup(folder, 10_000, self._algorithm.needs)

    def compared(self, rows: Sequence[Row], pairs: int) -> dict[str, float]:
        """Fields of these rows."""
        given = prepared(batch(rows), self._algorithm)
        flat, tree = (_Side(trainer, self._algorithm, given) for trainer in self._trainers)
        difference = flat.gradient_difference(tree)
        theirs, ours = interleaved(pairs, self._clock(flat.step), self._clock(tree.step))
        return {
            "token_ratio": round(flat.computed() / tree.computed(), 3),
            "speedup": round(ratio(theirs, ours), 3),
            "spread": round(spread(theirs, ours), 3),
            "gradient_difference": difference,
        }


@dataclass(frozen=True, slots=True)
class _Side:
    trainer: Any
    algorithm: Any
    given: Batch

    def step(self) -> None:
        self.trainer.step(self.given, self.algorithm, 0)

    def computed(self) -> int:
        cut = self.trainer._cut(self.given, self.given.loss_mask)
        return sum(micro.computed for micro in cut)

    def gradient(self) -> torch.Tensor:
        """All of it, before a step is made."""
        from astraflow_torch_training.gradient import Tally, accumulate

        model = self.trainer._model
        parts = self.trainer._cut(self.given, self.given.loss_mask)
        accumulate(model, self.given, self.algorithm, 0, parts, Tally(model.device))
        found = torch.cat([p.grad.flatten() for p in model.whole.parameters()])
        model.whole.zero_grad(set_to_none=True)
        return found

    def gradient_difference(self, other: _Side) -> float:
        mine, theirs = self.gradient(), other.gradient()
        return float((mine - theirs).abs().max() / mine.abs().max())


def batch(rows: Sequence[Row]) -> Batch:
    """These rows as one group, a few versions old."""
    generator = np.random.default_rng(1)
    lengths = np.array([len(tokens) for tokens, _ in rows], np.int32)
    mask = np.concatenate([trained for _, trained in rows])
    count, size = int(lengths.sum()), len(rows)
    made = Batch(
        id="b",
        policy="solver",
        version=4,
        lengths=lengths,
        tokens=np.concatenate([tokens for tokens, _ in rows]).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, generator.normal(-3.3, 0.3, count), 0.0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        rewards=generator.integers(0, 2, size).astype(np.float32),
        group=np.zeros(size, np.int64),
        trajectory=np.arange(size),
        group_size=np.full(size, size, np.int32),
        group_mean=np.zeros(size, np.float32),
        group_std=np.zeros(size, np.float32),
    )
    return stamped(made)
