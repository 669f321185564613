"""The ranks of a trainer: their rendezvous, what each of them holds, and what they exchange."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from astraflow_core.errors import UserError
from astraflow_core.types import Ranks
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.meeting import meeting_place


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Number of ranks along each dimension; Megatron-Core numbers them tensor first, pipeline last. ``expert``
    of the ``data`` parallel ranks, neighbours, share experts."""

    tensor: int
    data: int
    pipeline: int
    expert: int = 1

    def __str__(self) -> str:
        experts = f", {self.expert} expert parallel" if self.expert > 1 else ""
        return (
            f"{self.tensor} tensor × {self.data} data × {self.pipeline} pipeline parallel{experts}"
        )

    def rank(self, tensor: int, data: int, stage: int) -> int:
        """The rank at this place."""
        return tensor + self.tensor * (data + self.data * stage)


class Mesh:
    """This rank among all. Trainers of one process share the process groups, which end with the last."""

    _open = 0

    def __init__(self, config: MegatronConfig, ranks: Ranks, seed: int) -> None:
        """Meets the others, whose address is in the environment as torchrun leaves it.

        Raises :class:`UserError` if the number of ranks is not a multiple of what a replica takes.
        """
        self.size, self.rank = ranks.size, ranks.rank
        tensor, pipeline = config.tensor_parallel, config.pipeline_parallel
        if self.size % (tensor * pipeline):
            raise UserError(
                f"trainer 'megatron' has {self.size} ranks, but tensor_parallel = {tensor} times "
                f"pipeline_parallel = {pipeline} takes a multiple of {tensor * pipeline}"
            )
        replicas, experts = self.size // (tensor * pipeline), config.expert_parallel
        if replicas % experts:
            raise UserError(
                f"trainer 'megatron' has {replicas} replicas, which expert_parallel = {experts} does not divide"
            )
        self.layout = ParallelLayout(tensor, replicas, pipeline, experts)
        self.device = torch.device(config.device)
        if config.device == "cuda":
            self.device = torch.device("cuda", ranks.local)
            torch.cuda.set_device(self.device)
        deadline = timedelta(seconds=ranks.deadline_s)
        if not Mesh._open:
            dist.init_process_group(
                "nccl" if config.device == "cuda" else "gloo",
                store=meeting_place(ranks),
                rank=ranks.rank,
                world_size=ranks.size,
                timeout=deadline,
            )
            parallel_state.initialize_model_parallel(
                tensor,
                pipeline,
                expert_model_parallel_size=experts,
                distributed_timeout_minutes=max(1, round(ranks.deadline_s / 60)),
                create_gloo_process_groups=False,
            )
        Mesh._open += 1
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
        self.host = dist.new_group(backend="gloo", timeout=deadline)
        self.tensor_group = parallel_state.get_tensor_model_parallel_group()
        self.tensor_rank: int = parallel_state.get_tensor_model_parallel_rank()
        self.data_rank: int = parallel_state.get_data_parallel_rank()
        self.expert_rank: int = parallel_state.get_expert_model_parallel_rank()
        self.stage: int = parallel_state.get_pipeline_model_parallel_rank()
        self.first_stage = self.stage == 0
        self.last_stage: bool = self.stage == pipeline - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank reports what its replica found: the first of those with the last layers."""
        return self.last_stage and self.tensor_rank == 0

    def holds(self, stage: int, part: int | None) -> bool:
        """Whether a parameter of ``stage`` and, if it is one of an expert, expert parallel ``part`` is here."""
        return stage == self.stage and part in (None, self.expert_rank)

    def add(self, numbers: torch.Tensor) -> None:
        """Add up a tensor on the host over all ranks, in place."""
        dist.all_reduce(numbers, group=self.host)

    def total(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums by name over all ranks, some of which may not have the names; the same on all of them."""
        text = torch.frombuffer(bytearray(json.dumps(sums).encode()), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(text)
        self.add(sizes)
        padded = torch.nn.functional.pad(text, (0, int(sizes.max()) - len(text)))
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded, group=self.host)
        found: dict[str, float] = {}
        for one, size in zip(gathered, sizes.tolist(), strict=True):
            for name, value in json.loads(one[:size].numpy().tobytes()).items():
                found[name] = found.get(name, 0.0) + value
        return found

    def largest(self, number: float) -> float:
        """Of all ranks; the same on all of them."""
        held = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(held, dist.ReduceOp.MAX, group=self.host)
        return float(held)

    def wait_for_all(self) -> None:
        """Return when every rank has come here."""
        dist.barrier(group=self.host)

    def close(self) -> None:
        """Leave; the last trainer of the process ends the process groups."""
        Mesh._open -= 1
        if not Mesh._open:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
