"""What one rank and two ranks find, computed once."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for fsdp_cases
from fsdp_cases import (
    GRPO,
    SCENARIOS,
    Rank,
    accumulate_and_apply,
    long_row,
    run_scenario,
    train,
    weights,
    write_models,
)
from fsdp_launch import RANKS, start_ranks


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    (directory / "models").mkdir()
    write_models(directory / "models")
    return directory


@pytest.fixture(scope="session")
def one(directory: Path) -> dict[str, Any]:
    """One rank: the scenarios by ``torch``, and a checkpoint by ``fsdp``."""
    rank = Rank(directory)
    found: dict[str, Any] = {name: run_scenario(rank, "torch", name) for name in SCENARIOS}
    grpo = rank.algorithm("grpo", GRPO)
    plain = rank.trainer("torch", "qwen3")
    found["long row"] = long_row(rank, "torch")
    found["gradients"] = accumulate_and_apply(rank, "torch")
    found["one row"] = train(plain, grpo, [5], rows=1)
    found["after one row"] = weights(plain)
    found["through"] = [train(plain, grpo, [6, 7]), weights(plain)]
    plain.close()
    trainer = rank.trainer("fsdp", "qwen3")
    train(trainer, grpo, [5], rows=1)
    (directory / "one-rank").mkdir()
    trainer.save(directory / "one-rank")
    assert trainer.finish_save(wait=True)  # type: ignore[attr-defined]
    found["saved"] = weights(trainer)
    (directory / "one-rank-model").mkdir()
    trainer.save_model(directory / "one-rank-model")
    trainer.close()
    return found


@pytest.fixture(scope="session")
def four(directory: Path, one: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of four ranks found, in meshes of two dimensions and three."""
    start_ranks(Path(__file__).parent / "fsdp_mesh.py", directory, ranks_count=4)
    return [pickle.loads((directory / f"mesh-{n}.pickle").read_bytes()) for n in range(4)]


@pytest.fixture(scope="session")
def two(directory: Path, one: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    start_ranks(Path(__file__).parent / "fsdp_rank.py", directory)
    return [
        pickle.loads((directory / f"found-{number}.pickle").read_bytes()) for number in range(RANKS)
    ]
