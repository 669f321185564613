"""The trainer's side of a broadcast, for ``test_gpu.py``: run in vLLM's own environment, on the second GPU.
``python trainer_of_broadcast.py PORT BYTES_FILE``: joins as rank 0 of 2 and broadcasts the file's bytes, once."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

torch.cuda.set_device(1)
group = stateless_init_process_group("127.0.0.1", int(sys.argv[1]), 0, 2, device=1)
data = torch.frombuffer(bytearray(Path(sys.argv[2]).read_bytes()), dtype=torch.uint8).to("cuda:1")
group.broadcast(data, src=0, stream=torch.cuda.current_stream())
torch.cuda.synchronize()
