"""The half that runs inside vLLM's workers: a weight-transfer backend that reads a version by its path.

vLLM 0.32 has an update protocol of four calls (init, start, update in chunks, finish; see
``vllm.distributed.weight_transfer``), whose own backends all move tensors between GPUs, unverified. This one
reads chunks of a verified safetensors file, on any device, or opens buckets from a trainer's GPU once their
digests are right. ``vllm serve`` is started with
``--worker-extension-cls astraflow_plugin_vllm.workers.transfer.WorkerExtension`` so that each worker imports this
module, and with it the backend, before it loads the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.nccl_common import (
    NCCLWeightTransferInitInfo,
    worker_init_process_group,
)
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from astraflow_plugin_vllm.names import BACKEND
from astraflow_plugin_vllm.workers import received


@dataclass
class Init(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on before a path can be read or memory mapped; for a broadcast, the fields of
    :class:`astraflow_serving.buckets.Rendezvous`."""

    address: str | None = None
    port: int = 0
    rank_offset: int = 0
    world_size: int = 0


@dataclass
class TransferChunk(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A chunk: tensors ``names`` of the safetensors file ``path``; or ``tensors`` in a buffer with a ``digest``,
    mapped from ``memory`` or, without one, broadcast."""

    path: str | None = None
    names: list[str] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    digest: str = ""
    memory: dict[str, Any] | None = None


class TransferBackend(WeightTransferEngine[Init, TransferChunk]):  # type: ignore[misc]
    """The backend. Names are those of the checkpoint; the model's own loader fuses and shards them."""

    init_info_cls = Init
    update_info_cls = TransferChunk
    _group: Any = None

    def init_transfer_engine(self, init_info: Init) -> None:
        """Take a place in the group of a broadcast, if there is to be one."""
        if init_info.address is None:
            return
        received.need_cuda(self.device)
        found = NCCLWeightTransferInitInfo(
            master_address=init_info.address,
            master_port=init_info.port,
            rank_offset=init_info.rank_offset,
            world_size=init_info.world_size,
        )
        self._group = worker_init_process_group(found, self.parallel_config)

    def start_weight_update(self) -> None:
        """Put the model's parameters back into checkpoint layout, on the meta device."""
        forget_failed_update(self.model, self.model_config)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one chunk. The base class would call ``torch.accelerator.synchronize()`` afterwards, which
        a CPU lacks."""
        self.receive_weights(self.parse_update_info(update_info))
        received.settle(self.device)

    def receive_weights(self, update_info: TransferChunk) -> None:
        """Feed the chunk's tensors to the model."""
        self.model.load_weights(self._tensors(update_info))

    def _tensors(self, update: TransferChunk) -> Iterator[tuple[str, torch.Tensor]]:
        if update.path is not None:
            yield from _of_file(update.path, update.names)
            return
        layout = received.BufferLayout(update.tensors, update.digest)
        if update.memory is not None:
            buffer = received.mapped(update.memory, layout, self.device)
        else:
            buffer = received.broadcast(self._group, layout, self.device)
        yield from received.opened(buffer, layout)

    def finish_weight_update(self) -> None:
        """Process what has arrived into the kernels' own layout."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_output(self.model)
        received.settle(self.device)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


def _of_file(path: str, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in names:
            yield name, file.get_tensor(name)


WeightTransferEngineFactory.register_engine(BACKEND, TransferBackend)


def forget_failed_update(model: torch.nn.Module, model_config: Any) -> None:
    """Put every layer back that waits for more of an update that failed.

    vLLM 0.32 continues where such an update stopped: a layer that had half of its tensors counts them with those
    of the next update, is taken for whole too early, and keeps what is in memory for the rest.
    """
    halves = [info for info in map(get_layerwise_info, model.modules()) if info.can_load()]
    for info in halves:
        info.loaded_weights.clear()
        info.load_numel = 0
    if halves:
        finalize_layerwise_reload(model, model_config)


def repack_output(model: torch.nn.Module) -> None:
    """Bring an output layer that is tied to the embedding up to date.

    On CPU each linear layer multiplies by a packed copy of its weight. vLLM 0.32 renews the copies of the
    layers that a version names, and a tied output layer is in none: it would continue with the weights of
    the model that the server was started with. On other devices the two share one tensor.
    """
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension:
    """Mixed into vLLM's worker class, whose methods ``/collective_rpc`` calls."""

    def repack_output(self) -> None:
        """:func:`repack_output`, after a version came by ``reload_weights``."""
        worker: Any = self
        repack_output(worker.model_runner.get_model())

    def forget_failed_update(self) -> None:
        """:func:`forget_failed_update`, before a version comes by ``reload_weights``."""
        worker: Any = self
        forget_failed_update(worker.model_runner.get_model(), worker.model_config)

    def remember_adapter(self) -> None:
        """Note the number of the adapter that was loaded last, by which requests know it."""
        worker: Any = self
        worker.astraflow_adapter = self.newest_adapter()

    def newest_adapter(self) -> int:
        """The number of the adapter that was loaded last: the server counts them."""
        worker: Any = self
        return int(max(worker.list_loras()))

    def swap_adapter(self, path: str) -> None:
        """Replace the weights of that adapter by those of the folder ``path``. They are read whole before the
        old ones go."""
        worker: Any = self
        worker.add_lora(LoRARequest("swapped", worker.astraflow_adapter, path, load_inplace=True))
