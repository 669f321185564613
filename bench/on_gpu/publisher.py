"""A trainer's process that offers one version by `cuda_ipc` until its standard input ends: ``python -m bench.on_gpu.publisher
FOLDER MEGABYTES``. It prints the announcement as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from astraflow_core.types import ComponentContext, ExportedTensor, RunInfo
from astraflow_plugin_cuda_ipc.config import CudaIpcConfig
from astraflow_plugin_cuda_ipc.transport import CudaIpcTransport

ROWS = 1024


def main() -> None:
    """Publish version 1 and wait."""
    folder, megabytes = Path(sys.argv[1]), int(sys.argv[2])
    info = RunInfo("bench", 0, 1, 1, ("p",), folder)
    context = ComponentContext(info, "trainer", "p", 0, folder, "token")
    publisher = CudaIpcTransport(CudaIpcConfig.model_validate({}), context).publisher()
    generator = np.random.default_rng(0)
    tensors = [
        ExportedTensor(f"w{n}", "F32", (ROWS, 256), generator.random((ROWS, 256), np.float32))
        for n in range(megabytes)
    ]
    manifest = publisher.publish(1, tensors)
    told = {
        "policy": "p", "version": 1, "transport": "cuda_ipc", "endpoints": publisher.endpoints,
        "digest": manifest.digest, "size": manifest.size,
    }  # fmt: skip
    print(json.dumps(told), flush=True)
    sys.stdin.read()
    publisher.close()


if __name__ == "__main__":
    main()
