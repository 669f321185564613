"""A trainer's process: publishes a small update of its weights for each line ``publish DENSITY``, and answers with
the announcement and the sha256 of the weights."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from astraflow_core.types import ComponentContext, ExportedTensor, RunInfo
from astraflow_plugin_delta.config import DeltaConfig
from astraflow_plugin_delta.transport import DeltaTransport


def main(folder: str, token: str, blocks: str) -> None:
    run = RunInfo("test", 0, 1, 0, ("solver",), Path(folder))
    context = ComponentContext(run, "trainer", "solver", 0, Path(folder) / "trainer", token)
    generator = np.random.default_rng(0)
    weights = generator.integers(0, 2**16, (int(blocks) << 20) + 77, dtype=np.uint16)
    with closing(DeltaTransport(DeltaConfig(kernel="numpy"), context).publisher()) as publisher:
        for version, line in enumerate(sys.stdin, 1):
            where = np.flatnonzero(generator.random(weights.size) < float(line.split()[1]))
            size = generator.geometric(0.9, where.size) * generator.choice([-1, 1], where.size)
            weights[where] += size.astype(np.uint16)
            tensor = ExportedTensor("model.weight", "BF16", weights.shape, weights)
            manifest = publisher.publish(version, [tensor], version - 1 or None)
            publisher.retain(frozenset())
            told = {
                "policy": "solver",
                "version": version,
                "transport": "delta",
                "endpoints": publisher.endpoints,
                "digest": manifest.digest,
                "size": manifest.size,
                "sha256": hashlib.sha256(weights.tobytes()).hexdigest(),
            }
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
