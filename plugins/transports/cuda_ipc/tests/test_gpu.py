"""A version out of another process's memory, on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, ComponentContext, RunInfo
from astraflow_plugin_cuda_ipc.config import CudaIpcConfig
from astraflow_plugin_cuda_ipc.transport import CudaIpcTransport
from astraflow_torch_weights.buckets import opened, tensors_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA IPC needs an NVIDIA GPU"),
]
TRAINER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
import numpy as np
from astraflow_core.types import ComponentContext, ExportedTensor, RunInfo
from astraflow_plugin_cuda_ipc.config import CudaIpcConfig
from astraflow_plugin_cuda_ipc.transport import CudaIpcTransport
folder = Path(sys.argv[1])
info = RunInfo("test", 0, 1, 1, ("p",), folder)
transport = CudaIpcTransport(CudaIpcConfig(bucket_mb=1), ComponentContext(info, "trainer", "p", 0, folder, "t"))
publisher = transport.publisher()
values = np.random.default_rng(0).normal(size=(4, 600, 300)).astype(np.float32)
exported = [ExportedTensor(f"w{n}", "F32", (600, 300), values[n]) for n in range(4)]
manifest = publisher.publish(1, exported)
told = {"policy": "p", "version": 1, "transport": "cuda_ipc", "endpoints": publisher.endpoints,
        "digest": manifest.digest, "size": manifest.size}
print(json.dumps(told), flush=True)
sys.stdin.read()
publisher.close()
"""


def test_every_tensor_comes_out_of_the_trainers_memory(tmp_path: Path) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    info = RunInfo("test", 0, 1, 1, ("p",), tmp_path)
    context = ComponentContext(info, "raas", "p", 0, tmp_path, "t")
    device = torch.device("cuda", 0)
    try:
        assert trainer.stdout is not None
        told = json.loads(trainer.stdout.readline())
        announcement = Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))
        with closing(CudaIpcTransport(CudaIpcConfig(), context).receiver()) as receiver:
            for _ in range(2):
                delivery = receiver.meet(announcement, "engine", 0, 60)
                found = dict(tensors_of(delivery.buckets, opened(1, delivery.buckets, device)))
                values = np.random.default_rng(0).normal(size=(4, 600, 300)).astype(np.float32)
                for number in range(4):
                    assert (found[f"w{number}"].cpu().numpy() == values[number]).all()
                receiver.done(announcement, delivery)
            delivery = receiver.meet(announcement, "engine", 0, 60)
            wrong = replace(delivery.buckets[0], digest="0" * 32)
            with pytest.raises(WeightsError, match="arrived corrupted: bucket 0"):
                opened(1, [wrong], device)
            receiver.done(announcement, delivery)
    finally:
        trainer.communicate("", timeout=30)
