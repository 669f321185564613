"""Passes of micro-batches through the pipeline, forward alone or with the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch
from astraflow_plugin_megatron.model.policy import Wanted
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_torch_training.gradient import Tally, forward
from astraflow_torch_training.model import TokenPrediction
from astraflow_training.micro_batches import MicroBatch

LossOf = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the last stage gave for a micro-batch, where a loss asks its model."""

    outputs: torch.Tensor
    device: torch.device

    def predict(
        self,
        micro: MicroBatch,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool,
        with_values: bool,
    ) -> TokenPrediction:
        """See :meth:`astraflow_torch_training.model.CausalLM.predict`."""
        return TokenPrediction(
            self.outputs[0],
            self.outputs[1] if with_entropy else None,
            self.outputs[-1] if with_values else None,
        )


def sum_gradients(model: list[Any], num_tokens: Any = None, **keywords: Any) -> None:
    """Megatron-Core's own reduction over ranks (data parallel, norms of queries and keys, tied embeddings),
    without its division by a number of tokens: shares in a loss are fixed before they are added up."""
    finalize_model_grads(model, None, **keywords)


def evaluate(
    model: Any, mesh: Mesh, batch: Batch, cut: list[MicroBatch], vocabulary: int, wanted: Wanted
) -> npt.NDArray[np.float32]:
    """The one row that is ``wanted`` of the positions of ``cut`` among the tokens of ``batch``, float32 ``[N]``, on
    the ranks that speak for their replica; elsewhere 0."""
    result = np.zeros(len(batch.tokens), dtype=np.float32)

    def keep(micro: MicroBatch, outputs: torch.Tensor) -> torch.Tensor:
        if mesh.speaks:
            result[micro.positions] = outputs[0].float().cpu().numpy()
        return outputs.new_zeros(())

    with torch.no_grad():
        _run(model, mesh, batch, cut, vocabulary, wanted, keep, forward_only=True)
    return result


def accumulate(
    model: Any,
    mesh: Mesh,
    batch: Batch,
    algorithm: Algorithm,
    step: int,
    cut: list[MicroBatch],
    vocabulary: int,
) -> Tally:
    """Add the gradient of the loss of all micro-batches of all ranks to the gradients of ``model``; what is
    reported has been added up over this replica, on its speaker."""
    tally = Tally(mesh.device)
    wanted = Wanted(entropy="entropy" in algorithm.needs, values="values" in algorithm.needs)

    def loss(micro: MicroBatch, outputs: torch.Tensor) -> torch.Tensor:
        if micro.rows == 0:
            return outputs.sum() * 0
        predicted = Predicted(outputs, mesh.device)
        total, _ = forward(predicted, batch, algorithm, step, micro, tally)
        return total if total.requires_grad else outputs.sum() * 0

    with tally.clock("forward_backward_s"):
        _run(model, mesh, batch, cut, vocabulary, wanted, loss, forward_only=False)
    return tally


def _run(
    model: Any,
    mesh: Mesh,
    batch: Batch,
    cut: list[MicroBatch],
    vocabulary: int,
    wanted: Wanted,
    use: Callable[[MicroBatch, torch.Tensor], torch.Tensor],
    forward_only: bool,
) -> None:
    nothing = torch.zeros((), dtype=torch.int, device=mesh.device)

    def step(parts: Iterator[MicroBatch], stage: Any, *_: Any) -> tuple[torch.Tensor, LossOf]:
        micro = next(parts)

        def there(array: npt.NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(array).to(mesh.device)

        outputs = stage(
            there(micro.input_ids),
            there(micro.states),
            there(batch.tokens[micro.positions].astype(np.int64)),
            batch.temperature,
            vocabulary,
            wanted,
            micro.routed,
        )
        return outputs, partial(finish, micro)

    def finish(
        micro: MicroBatch, outputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        return use(micro, outputs), nothing, {}

    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iter(cut),
        model=[model],
        num_microbatches=len(cut),
        seq_length=max(micro.input_ids.shape[1] for micro in cut),
        micro_batch_size=max(micro.input_ids.shape[0] for micro in cut),
        forward_only=forward_only,
    )
