"""The half that runs inside vLLM's workers: a weight-transfer backend that reads a version by its path.

vLLM 0.32 has an update protocol of four calls (init, start, update in chunks, finish; see
``vllm.distributed.weight_transfer``), whose own backends all move tensors between GPUs. This one reads
chunks of a verified safetensors file instead, on any device. ``vllm serve`` is started with
``--worker-extension-cls astraflow_plugin_vllm.transfer:WorkerExtension`` so that each worker imports this
module, and with it the backend, before it loads the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from astraflow_plugin_vllm.names import BACKEND


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on before a path can be read."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A chunk: tensors ``names`` of the safetensors file ``path``."""

    path: str
    names: list[str]


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):  # type: ignore[misc]
    """The backend. Names are those of the checkpoint; the model's own loader fuses and shards them."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Put the model's parameters back into checkpoint layout, on the meta device."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one chunk. The base class would call ``torch.accelerator.synchronize()`` afterwards, which
        a CPU lacks; what is copied from a file is there when the copy returns, or ordered before the
        next kernel on the same stream."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Feed the chunk's tensors to the model."""
        self.model.load_weights(_tensors(update_info))

    def finish_weight_update(self) -> None:
        """Process what has arrived into the kernels' own layout."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_output(self.model)

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors(update: FileUpdate) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(update.path, framework="pt") as file:
        for name in update.names:
            yield name, file.get_tensor(name)


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


def repack_output(model: torch.nn.Module) -> None:
    """Bring an output layer that is tied to the embedding up to date.

    On CPU each linear layer multiplies by a packed copy of its weight. vLLM 0.32 renews the copies of the
    layers that a version names, and a tied output layer is in none: it would go on with the weights of
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

    def remember_adapter(self) -> None:
        """Note the number of the only adapter, by which requests know it."""
        worker: Any = self
        (worker.astraflow_adapter,) = worker.list_loras()

    def swap_adapter(self, path: str) -> None:
        """Replace the weights of that adapter by those of the folder ``path``. They are read whole before the
        old ones go."""
        worker: Any = self
        worker.add_lora(LoRARequest("swapped", worker.astraflow_adapter, path, load_inplace=True))
