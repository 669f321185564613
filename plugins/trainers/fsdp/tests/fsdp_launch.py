"""Starts a script as several ranks, as torchrun would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

RANKS = 2


def start_ranks(
    script: Path, directory: Path, *arguments: str, ranks_count: int = RANKS
) -> list[str]:
    """Run ``script directory arguments`` on several ranks to its end; what each of them wrote, which is also the
    error if one fails."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks_count),
        "OMP_NUM_THREADS": "1",
    }
    logs = [directory / f"{script.stem}-{number}.log" for number in range(ranks_count)]
    ranks = []
    for number, log in enumerate(logs):
        with log.open("wb") as out:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(directory), *arguments],
                    env={**environment, "RANK": str(number), "LOCAL_RANK": str(number)},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        for rank in ranks:
            rank.wait(timeout=480)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    written = [log.read_text() for log in logs]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(written)
    return written
