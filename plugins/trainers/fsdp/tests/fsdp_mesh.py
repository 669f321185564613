"""One of four ranks: the same steps in meshes of more than one dimension, and checkpoints between them."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from fsdp_cases import GRPO, MESHES, Rank, run_scenario, train, weights

from astraflow_core.types import Ranks


def main(directory: Path) -> None:
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank = Rank(directory, Ranks(number, size, number, deadline_s=180.0))
    # Keeps the group of processes alive from one trainer to the next.
    first = rank.trainer("fsdp", "qwen3", tensor_parallel=2)
    found: dict[str, Any] = {
        str(keys): run_scenario(rank, "fsdp", "qwen3", **keys) for keys in MESHES
    }
    shared = rank.trainer("fsdp", "qwen3", context_parallel=2)
    found["one row"] = train(shared, rank.algorithm("grpo", GRPO), [5], rows=1)
    found["after one row"] = weights(shared)
    shared.close()
    folder, adapters = directory / "four-ranks", directory / "four-ranks-adapters"
    if number == 0:
        folder.mkdir()
        adapters.mkdir()
    train(first, rank.algorithm("grpo", GRPO), [5], rows=1)
    found["saved"] = weights(first)
    first._joined().exchange({})  # type: ignore[attr-defined]
    first.save(folder)
    assert first.finish_save(wait=True)  # type: ignore[attr-defined]
    first.load(directory / "one-rank")
    found["resharded"] = weights(first)
    train(first, rank.algorithm("grpo", GRPO), [6])
    first.adopt(directory / "one-rank-model", 3)
    found["adopted"] = weights(first)

    found["lora"] = run_scenario(rank, "fsdp", "lora", tensor_parallel=2, context_parallel=2)
    cut = rank.trainer("fsdp", "qwen3", tensor_parallel=2, lora_rank=3)
    train(cut, rank.algorithm("grpo", GRPO), [5])
    cut.save(adapters)
    assert cut.finish_save(wait=True)  # type: ignore[attr-defined]
    whole = rank.trainer("fsdp", "qwen3", lora_rank=3)
    whole.load(adapters)
    found["adapters"] = [weights(cut), weights(whole)]
    cut.save_model(directory / "merged-of-parts")
    whole.save_model(directory / "merged")
    for trainer in (whole, cut, first):
        trainer.close()
    (directory / f"mesh-{number}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
