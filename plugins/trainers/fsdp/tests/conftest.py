"""What one rank and two ranks find, computed once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))  # for cases
from cases import GRPO, SCENARIOS, Rank, run_scenario, train, weights, write_models

RANKS = 2


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
    trainer.close()
    return found


@pytest.fixture(scope="session")
def two(directory: Path, one: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).parent / "rank_main.py"
    ranks = []
    for number in range(RANKS):
        with (directory / f"rank-{number}.log").open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(directory)],
                    env={**environment, "RANK": str(number), "LOCAL_RANK": str(number)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        for rank in ranks:
            rank.wait(timeout=240)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    logs = "\n".join((directory / f"rank-{n}.log").read_text() for n in range(RANKS))
    assert all(rank.returncode == 0 for rank in ranks), logs
    return [
        pickle.loads((directory / f"found-{number}.pickle").read_bytes()) for number in range(RANKS)
    ]
