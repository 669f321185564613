"""Keeps batches whose loss was not finite, for inspection."""

from __future__ import annotations

from pathlib import Path

from astraflow_core.types import Batch
from astraflow_wire.batches import encode_batch
from astraflow_wire.host.disk import is_full

FOLDER = "bad_batches"
"""In the run directory."""


def keep_batch(directory: Path, batch: Batch) -> str:
    """Write the batch as received, in the wire's frame format; returns a message with its path and
    how to read it, or that the disk is full.
    """
    file = directory / FOLDER / f"{batch.id}.batch"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_batch(batch))
    except OSError as error:
        if not is_full(error, directory):
            raise
        file.unlink(missing_ok=True)
        return f"there is no disk space to keep the batch: {error}"
    return (
        f"the batch is kept in {file}; to look at it: "
        "from astraflow_wire.batches import decode_batch; "
        f'batch = decode_batch(open("{file}", "rb").read())'
    )
