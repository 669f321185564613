"""``python -m bench.support.fsdp_rank FOLDER PAIRS ROWS``: one of two ranks of `fsdp`; in rank 0 the minimal loop takes turns.

What steps took is left in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from astraflow_core.types import Ranks
from bench.support.timing import interleaved
from bench.trainers import Scene, cpu_s


def main(folder: Path, pairs: int, rows: int) -> None:
    """Rank 1 makes as many steps as :meth:`Scene.turns` does in rank 0, and waits within them."""
    rank = int(os.environ["RANK"])
    scene = Scene(folder, rows)
    trainer = scene.trainer("fsdp", Ranks(rank, 2, rank, 600.0))
    found = {}
    if rank == 0:
        found["ours"], found["theirs"] = scene.turns(trainer, pairs)
    else:
        trainer.step(scene.given, scene.algorithm, 0)
        (found["ours"],) = interleaved(
            pairs, cpu_s(lambda: trainer.step(scene.given, scene.algorithm, 0))
        )
    trainer.close()
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
