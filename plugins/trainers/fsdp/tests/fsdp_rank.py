"""One of two ranks: runs every check that needs both, and writes its results to a file."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from fsdp_cases import (
    CONTEXT,
    DRIVEN,
    GRPO,
    SCENARIOS,
    Rank,
    accumulate_and_apply,
    digest,
    long_row,
    make_batch,
    prepared,
    run_scenario,
    train,
    weights,
)

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.types import Announcement, Ranks
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.shards.publisher import HttpShardPublisher
from astraflow_weights.snapshot import Snapshotter

BLOCK = 512


def main(directory: Path) -> None:
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank = Rank(directory, Ranks(number, size, number, deadline_s=180.0))
    grpo = rank.algorithm("grpo", GRPO)
    # Keeps the group of processes alive from one trainer to the next.
    first = rank.trainer("fsdp", "qwen3")
    found: dict[str, Any] = {name: run_scenario(rank, "fsdp", name) for name in SCENARIOS}
    for keys in (
        {"reduce": "each"},
        {"replicas": 2},
        {"tensor_parallel": 2},
        {"cpu_offload": True},
        {"gradient_checkpointing": True, "layout": "packed"},
        {"layout": "tree", "micro_batch_tokens": 60},
        {"compute_dtype": "bfloat16"},
    ):
        found[str(keys)] = run_scenario(rank, "fsdp", "qwen3", **keys)

    for name, keys in CONTEXT.items():
        ran = run_scenario(rank, "fsdp", name, context_parallel=2, **keys)
        found[f"context {name}"] = ran

    for keys in DRIVEN:
        found[f"gradients {keys}"] = accumulate_and_apply(rank, "fsdp", **keys)
    found["long row"] = long_row(rank, "fsdp", context_parallel=2)
    found["one row"] = train(first, grpo, [5], rows=1)
    found["after one row"] = weights(first)
    held, sharded = 0, 0
    for parameter in first._model.whole.parameters():  # type: ignore[attr-defined]
        held += parameter.to_local().numel()
        sharded += parameter.numel()
    found["held"], found["all"] = held, sharded

    found["published"] = publish_together(first, rank.ranks)

    # A checkpoint, and the steps after it with and without reading it.
    folder = directory / "two-ranks"
    if number == 0:
        folder.mkdir()
    first._joined().exchange({})  # type: ignore[attr-defined]
    found["saved"] = weights(first)
    first.save(folder)  # and the steps after it run while it is written
    found["through"] = [*train(first, grpo, [6, 7]), digest(first)]
    found["written"] = first.finish_save(wait=True)  # type: ignore[attr-defined]
    again = rank.trainer("fsdp", "qwen3")
    again.load(folder)
    found["resumed"] = [*train(again, grpo, [6, 7]), digest(again)]
    again.load(directory / "one-rank")
    found["resharded"] = weights(again)
    again.adopt(directory / "one-rank-model", 2)  # type: ignore[attr-defined]
    found["adopted"] = weights(again)
    again.load(directory / "one-rank")
    found["after resharding"] = [train(again, grpo, [6, 7]), weights(again)]

    # What must end alike on all ranks: only rank 0 sees the NaN in its share, or reads the folder.
    batch = prepared(again, grpo, make_batch(8))
    assert batch.advantages is not None
    poisoned = batch.advantages.copy()
    poisoned[np.flatnonzero(batch.loss_mask)[3]] = np.nan
    before = digest(again)
    try:
        again.step(replace(batch, advantages=poisoned), grpo, 8)
    except NonFiniteLoss as error:
        found["refused"] = str(error)
    found["unchanged"] = before == digest(again)
    try:
        rank.trainer("fsdp", "broken")
    except UserError as error:
        found["broken"] = str(error)
    other = rank.trainer("fsdp", "llama")
    try:
        other.load(folder)
    except UserError as error:
        found["other model"] = str(error)
    again.save_model(directory / "left")
    for trainer in (other, again, first):
        trainer.close()
    (directory / f"found-{number}.pickle").write_bytes(pickle.dumps(found))


def publish_together(trainer: Any, ranks: Ranks) -> dict[str, Any]:
    """Publish by the half of this rank, and on rank 0 what is gathered there; fetch it on rank 0."""
    found: dict[str, Any] = {}
    held = sum(memoryview(part.data).nbytes for part in trainer.export_shards())

    def share(mine: bytes) -> list[bytes]:
        said = trainer._joined().exchange({"said": mine.hex()})
        return [bytes.fromhex(each["said"]) for each in said]

    publisher = HttpShardPublisher(
        "p", "token", ranks, share, host="127.0.0.1", port=0, advertise=None, block_size=BLOCK
    )
    gathered = bytes(Snapshotter("p").take(1, trainer.export(), None).data)
    manifest = publisher.publish(1, trainer.export_shards, None)
    found["gathered"], found["blocks"] = gathered, manifest.blocks
    found["held"], found["peak"], found["size"] = held, publisher.peak, manifest.size
    share(b"")
    if ranks.rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            receiver = HttpReceiver(Path(folder), "token", streams=2)
            told = Announcement("p", 1, "http", publisher.endpoints, manifest.digest, manifest.size)
            found["fetched"] = receiver.fetch(told, 30).path.read_bytes()
            receiver.close()
    share(b"")
    publisher.close()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
