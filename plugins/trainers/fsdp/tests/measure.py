"""``python measure.py FOLDER``: CPU seconds of a step and of an export, ``torch`` and ``fsdp`` side by side.

The model of the quickstart (397k parameters), GRPO with an entropy bonus, 512 rows of 3 to 24 tokens, float32, one thread
a rank; medians of ten steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from fsdp_cases import GRPO, Rank, make_batch, prepared
from fsdp_launch import start_ranks

from astraflow_core.types import Ranks
from astraflow_tiny_model.folder import write_tiny_model


def measure(directory: Path, use: str) -> None:
    number, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank = Rank(directory, Ranks(number, size, number, deadline_s=120.0))
    trainer = rank.trainer(use, "quickstart", micro_batch_tokens=2048)
    algorithm = rank.algorithm("grpo", {**GRPO, "entropy_coef": 0.1})
    batch = prepared(trainer, algorithm, make_batch(0, rows=512))
    for step in range(2):
        trainer.step(batch, algorithm, step)
    seconds = []
    for step in range(10):
        started = time.process_time()
        trainer.step(batch, algorithm, step)
        seconds.append(time.process_time() - started)
    started = time.process_time()
    size_mb = sum(memoryview(tensor.data).nbytes for tensor in trainer.export()) / 1e6
    exported = time.process_time() - started
    trainer.close()
    sys.stdout.write(
        f"{use}, rank {number} of {size}: step {np.median(seconds):.3f} s, export of {size_mb:.1f} MB "
        f"{1e3 * exported:.1f} ms\n"
    )


def main(directory: Path) -> None:
    write_tiny_model(
        directory / "models" / "quickstart",
        hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=384,
    )  # fmt: skip
    for use in ("torch", "fsdp"):
        measure(directory, use)
    for written in start_ranks(Path(__file__), directory, "fsdp"):
        sys.stdout.write(written.splitlines()[-1] + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        measure(Path(sys.argv[1]), sys.argv[2])
    else:
        main(Path(sys.argv[1]))
