"""The loops of Tinker's cookbook as they are: supervised, RL and DPO, on data that is made here. Prints what each has logged.

The model's tokenizer is on no hub: it is registered as the cookbook offers, and data are tokens, without a renderer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz
import numpy as np
import tinker
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.supervised import train as supervised
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
    SupervisedDatasetBuilder,
)
from tinker_cookbook.tokenizer_utils import register_tokenizer

MODEL, RANK = "astraflow/tiny", 8
PROMPT, WANTED, OTHER = [3, 4, 5], [6, 7], [8, 9]
STEPS, SAME = 6, 4


def datum(answer: Sequence[int]) -> tinker.Datum:
    tokens = [*PROMPT, *answer]
    trained = np.arange(1, len(tokens)) >= len(PROMPT)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": np.array(tokens[1:], np.int64),
            "weights": trained.astype(np.float32),
        },
    )


class Batches(SupervisedDataset):
    """The same batch again and again."""

    def __init__(self, batch: list[tinker.Datum]) -> None:
        self._batch = batch

    def get_batch(self, index: int) -> list[tinker.Datum]:
        return self._batch

    def __len__(self) -> int:
        return STEPS

    def set_epoch(self, seed: int = 0) -> None:
        pass


@chz.chz
class Answers(SupervisedDatasetBuilder):
    """Answers to imitate."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        return Batches([datum(WANTED)] * SAME), None


@chz.chz
class Pairs(ChatDatasetBuilder):
    """One answer that is preferred to another."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        return Batches([datum(WANTED), datum(OTHER)] * SAME), None


class OneToken(Env):
    """Reward 1 for a token of the lower half of the vocabulary."""

    async def initial_observation(self) -> Any:
        return tinker.ModelInput.from_ints(PROMPT), []

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        return StepResult(float(action[0] < 14), True, tinker.ModelInput.from_ints([]), [])


class Group(EnvGroupBuilder):
    """Environments whose rewards are compared."""

    async def make_envs(self) -> Sequence[Env]:
        return [OneToken() for _ in range(32)]


class Groups(RLDataset):
    """The same groups again and again."""

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [Group() for _ in range(SAME)]

    def __len__(self) -> int:
        return STEPS


@chz.chz
class Task(RLDatasetBuilder):
    """The groups, without a test set."""

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return Groups(), None


def logged(folder: Path, name: str) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [metrics[name] for metrics in map(json.loads, lines) if name in metrics]


def main() -> None:
    folder = Path(sys.argv[1])
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=RANK).result()
    tokenizer = training.get_tokenizer()
    register_tokenizer(MODEL, lambda: tokenizer)
    common: dict[str, Any] = {
        "model_name": MODEL,
        "recipe_name": "play",
        "lora_rank": RANK,
        "learning_rate": 1e-2,
        "eval_every": 0,
    }
    without: dict[str, Any] = {"save_every": 0, "infrequent_eval_every": 0}
    imitation = supervised.Config(
        log_path=str(folder / "sl"), dataset_builder=Answers(), **common, **without
    )
    asyncio.run(supervised.main(imitation))
    task = rl.Config(
        log_path=str(folder / "rl"), dataset_builder=Task(), max_tokens=1, save_every=4, **common
    )
    asyncio.run(rl.main(task))
    unused = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name="role_colon", max_length=None, batch_size=SAME
    )
    pairs = Pairs(common_config=unused)
    train_dpo.main(
        train_dpo.Config(log_path=str(folder / "dpo"), dataset_builder=pairs, **common, **without)
    )
    found = {
        "nll": logged(folder / "sl", "train_mean_nll"),
        "reward": logged(folder / "rl", "env/all/reward/total"),
        "dpo_loss": logged(folder / "dpo", "dpo_loss"),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
