"""The trainer ``megatron``: setup, log-probs, one optimizer step, and the ways in and out of its state."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext, ExportedTensor, TensorSlice
from astraflow_plugin_megatron import cpu
from astraflow_plugin_megatron.architecture import Architecture, check_split, read_architecture
from astraflow_plugin_megatron.checkpoint import MegatronCheckpoints
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.model import passes
from astraflow_plugin_megatron.model.optimizer import Optimizer
from astraflow_plugin_megatron.model.policy import (
    DTYPES,
    PolicyModel,
    Wanted,
    add_value_head,
    build,
)
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_plugin_megatron.weights import export
from astraflow_plugin_megatron.weights.adapters import adapters_off, check_targets, with_adapters
from astraflow_plugin_megatron.weights.export_shards import export_shards
from astraflow_plugin_megatron.weights.folder import load_adapters, load_folder, shapes
from astraflow_plugin_megatron.weights.mapping import adapter_entries
from astraflow_torch_training.adoption import ADAPTER_FILE
from astraflow_torch_training.export import SAFETENSORS_NAMES, exported_tensor, write_folder
from astraflow_torch_training.gradient import Tally, step_metrics
from astraflow_torch_training.memory import (
    enough_memory,
    enough_memory_for_state,
    peak_memory_gb,
)
from astraflow_training.micro_batches import MicroBatch, check_context, micro_batches
from astraflow_training.schedule import lr_factor
from astraflow_training.shares import Share, even_micro_batches, idle, share

# On CPU activations of a few thousand tokens stay in cache; a GPU wants larger products.
MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class MegatronTrainer:
    """A Llama, Qwen2 or Qwen3 in Megatron-Core (Shoeybi et al. 2019, Narayanan et al. 2021).

    Every rank makes the same calls with the same whole batch; replicas share its rows by tokens. The
    gradient is the sum over all of them, since shares in a loss are fixed before. Dropout is off, so that the
    log-probs trained on are those that were sampled from. For an algorithm that needs values, a linear value
    head shares the last stage's hidden states; it is in checkpoints and never published.

    With ``lora_rank`` adapters are trained and published, and the reference model is the model without them.
    """

    proximal_in_step = True

    def __init__(self, config: MegatronConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context
        self._steps = 0
        self._total_steps = 0
        self._mesh: Mesh | None = None
        self._reference: PolicyModel | None = None
        self._last: tuple[Tally, Share, int, bool] | None = None
        self.weights_kind = "adapter" if config.lora_rank else "full"

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        config = self._config
        if config.device == "cpu":
            cpu.check()
        elif not torch.cuda.is_available():
            raise UserError(
                "trainer 'megatron' needs CUDA, and torch finds none; device = 'cpu' is for tests"
            )
        torch.set_num_threads(config.threads)
        torch.manual_seed(self._context.seed)
        self._arch = read_architecture(model)
        self._check_split(self._arch)
        if config.lora_rank:
            check_targets(self._arch, config.lora_targets)
        self._source, self._total_steps = model, total_steps
        self._budget = config.micro_batch_tokens or MICRO_BATCH_TOKENS[config.device]
        with self._runtime():
            self._mesh = Mesh(config, self._context.ranks, self._context.seed)
            self._critic = "values" in needs
            self._policy = build(model, self._arch, config, self._mesh)
            if config.lora_rank:
                with_adapters(self._policy, self._arch, config, self._mesh, self._context.seed)
            if self._critic:
                add_value_head(self._policy, self._arch, self._mesh)
            own = config.reference_model is None
            self._bare_is_reference = "reference" in needs and own and config.lora_rank > 0
            if "reference" in needs and not self._bare_is_reference:
                self._reference = self._load_reference()
            self._optimizer = Optimizer(self._policy, config)
            self._checkpoints = MegatronCheckpoints(
                self._optimizer, self._arch, config, self._critic, self._mesh
            )

    @property
    def reference_is_current(self) -> bool:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        return self._steps == 0 and self._config.reference_model is None

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; complete on every rank."""
        if model == "reference":
            batch = replace(batch, routed_experts=None)  # another model makes its own choices
        if model == "reference" and self._bare_is_reference:
            with adapters_off(self._policy):
                return self.logprobs(batch, "current")
        chosen = self._policy if model == "current" else self._reference
        if chosen is None:
            raise UserError("no reference model was loaded: setup() did not request it")
        return self._evaluate(chosen, batch, Wanted())

    def logit_gradients(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.GivesLogitGradients`; complete on every rank."""
        wanted = Wanted(logprobs=False, logit_gradients=True)
        return self._evaluate(self._policy, batch, wanted)

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`: of the state before each token, 0 at the first of a
        row; complete on every rank."""
        if not self._critic:
            raise UserError("no critic was made: setup() did not request values")
        return self._evaluate(self._policy, batch, Wanted(logprobs=False, values=True))

    def _evaluate(
        self, model: PolicyModel, batch: Batch, wanted: Wanted
    ) -> npt.NDArray[np.float32]:
        mesh, result = self._ranks, np.zeros(len(batch.tokens), dtype=np.float32)
        mine, cut = self._cut(batch, np.ones(len(batch.tokens), dtype=np.bool_))
        vocabulary = self._arch.vocabulary
        with self._runtime(), self._enough_memory(batch):
            found = passes.evaluate(model, mesh, mine.batch, cut, vocabulary, wanted)
            result[mine.tokens] = found
            mesh.add(torch.from_numpy(result))
        return result

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`.

        Beside the required metrics: ``trained_tokens``, ``loss_<term>`` (they add up to ``loss``),
        ``entropy_estimate``, ``padding_fraction`` of the computed tokens, ``forward_backward_s`` with the waits
        within the pipeline and the reduction of gradients, ``optimizer_s``, and ``peak_memory_gb`` of the rank that
        took most.
        """
        mesh, config = self._ranks, self._config
        mine, cut = self._cut(batch, batch.loss_mask)
        lr = config.lr * lr_factor(
            self._steps,
            self._total_steps,
            config.schedule,
            config.warmup_steps,
            config.min_lr_ratio,
        )
        with self._runtime():
            self._optimizer.zero()
            with self._enough_memory(batch):
                tally = passes.accumulate(
                    self._optimizer.model,
                    mesh,
                    mine.batch,
                    algorithm,
                    step,
                    cut,
                    self._arch.vocabulary,
                )
            with tally.clock("optimizer_s"):
                own = {name: float(value) for name, value in tally.sums.items()}
                counts = {"tokens": float(tally.tokens), "computed": float(tally.computed)}
                sums = mesh.total(own if mesh.speaks else {})
                counted = mesh.total(counts if mesh.speaks else {})
                norm = self._norm(sums.get("loss", 0.0))
                with enough_memory_for_state("the optimizer's state"):
                    self._optimizer.step(lr, norm)
        self._steps += 1
        self._last = tally, mine, len(batch.tokens), "entropy" in algorithm.needs
        computed = counted["computed"]
        return {
            "loss": 0.0,
            **step_metrics(sums, batch),
            "grad_norm": norm,
            "lr": lr,
            "tokens": float(len(batch.tokens)),
            "trained_tokens": float(batch.trained_tokens),
            "padding_fraction": 1 - counted["tokens"] / computed if computed else 0.0,
            "peak_memory_gb": mesh.largest(peak_memory_gb(mesh.device)),
            **tally.seconds,
        }

    def step_logprobs(self) -> npt.NDArray[np.float32] | None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; complete on every rank, all of which call it."""
        if self._last is None:
            return None
        tally, mine, count, _ = self._last
        return self._whole(mine, tally.logprobs_of(mine.batch), count)

    def step_entropies(self) -> npt.NDArray[np.float32] | None:
        """See :meth:`step_logprobs`."""
        if self._last is None or not self._last[3]:
            return None
        tally, mine, count, _ = self._last
        return self._whole(mine, tally.entropies_of(mine.batch), count)

    def _whole(
        self, mine: Share, own: npt.NDArray[np.float32], count: int
    ) -> npt.NDArray[np.float32]:
        """What the speaker of each replica has of its share, of all ``count`` tokens of the batch."""
        result = np.zeros(count, dtype=np.float32)
        if self._ranks.speaks:
            result[mine.tokens] = own
        self._ranks.add(torch.from_numpy(result))
        return result

    def export(self) -> Iterator[ExportedTensor]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`: on rank 0; the others give nothing, and have
        to iterate as well."""
        dtype = DTYPES[self._config.publish_dtype]
        for name, tensor in export.published(
            self._policy, self._arch, self._config, self._ranks, dtype
        ):
            yield exported_tensor(name, tensor)

    @property
    def publish(self) -> Literal["auto", "sharded", "gathered"]:
        """See :class:`astraflow_core.protocols.trainer.ExportsShards`."""
        return self._config.publish

    def export_shards(self) -> Iterator[TensorSlice]:
        """See :class:`astraflow_core.protocols.trainer.ExportsShards`."""
        dtype = DTYPES[self._config.publish_dtype]
        return export_shards(self._policy, self._arch, self._ranks, dtype)

    def save(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; every rank into the same folder, and while training
        continues: see :meth:`finish_save`."""
        with self._runtime():
            self._checkpoints.save(directory, self._steps)

    def finish_save(self, wait: bool) -> bool:
        """See :class:`astraflow_core.protocols.trainer.SavesLater`."""
        return self._checkpoints.finish(wait)

    def load(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`. The reference model stays the initial one."""
        with self._runtime():
            self._steps = self._checkpoints.load(directory)

    def adopt(self, model: Path, steps: int) -> None:
        """See :class:`astraflow_core.protocols.trainer.AdoptsWeights`; each rank reads its part. With
        ``publish_dtype = "bfloat16"`` the weights are the rounded ones."""
        config = self._config
        with self._runtime():
            self._checkpoints.finish(True)
            self._optimizer.zero()
            if config.lora_rank:
                plan = adapter_entries(
                    self._arch, self._ranks.layout.pipeline, config.lora_rank, config.lora_targets
                )
                file = model / ADAPTER_FILE
                load_adapters(self._policy, file, plan, self._arch, config.lora_scale, self._ranks)
            else:
                load_folder(self._policy, model, self._arch, self._ranks)
            self._optimizer.take_parameters()
        self._steps = steps

    def save_model(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; in ``publish_dtype``, adapters merged."""
        name = self._config.publish_dtype
        dtype = DTYPES[name]
        tensors = (
            exported_tensor(*named)
            for named in export.merged(self._policy, self._arch, self._config, self._ranks, dtype)
        )
        if self._ranks.rank == 0:
            specs = ((n, SAFETENSORS_NAMES[dtype], shape) for n, shape in shapes(self._arch))
            write_folder(self._source, directory, name, specs, tensors)
        else:
            list(tensors)
        self._ranks.wait_for_all()

    def close(self) -> None:
        """Free model, reference and optimizer, and leave the other ranks."""
        if checkpoints := self.__dict__.get("_checkpoints"):
            checkpoints.close()
        for name in ("_policy", "_optimizer", "_checkpoints"):
            self.__dict__.pop(name, None)
        self._reference = self._last = None
        if self._mesh is not None:
            self._mesh.close()
            self._mesh = None

    @property
    def _ranks(self) -> Mesh:
        assert self._mesh is not None, "setup() must be called first, nothing after close()"
        return self._mesh

    @contextlib.contextmanager
    def _runtime(self) -> Iterator[None]:
        """A context in which Megatron-Core runs; its warnings are not logged."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"megatron\.core|torch\.distributed")
            warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor")
            if self._config.device == "cpu":
                stack.enter_context(cpu.standing_in())
            yield

    def _cut(self, batch: Batch, wanted: npt.NDArray[np.bool_]) -> tuple[Share, list[MicroBatch]]:
        """This replica's share and its micro-batches, at least one: the reduction of gradients is a
        collective. As many as the other replicas' if they share experts, where each forward pass is one."""
        check_context(batch, self._arch.context)
        layout, place = self._ranks.layout, self._ranks.data_rank
        if layout.expert > 1:
            return even_micro_batches(batch, wanted, self._budget, "bucketed", place, layout.data)
        mine = share(batch, place, layout.data)
        cut = list(micro_batches(mine.batch, wanted[mine.tokens], self._budget, packed=False))
        return mine, cut or [idle(batch, "bucketed")]

    def _check_split(self, arch: Architecture) -> None:
        config = self._config
        check_split(arch, config.tensor_parallel, config.pipeline_parallel, config.expert_parallel)

    def _enough_memory(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        return enough_memory(self._budget, int(batch.lengths.max(initial=0)))

    def _norm(self, loss: float) -> float:
        """Of the gradient before it is clipped; raises before anything is changed."""
        try:
            if not math.isfinite(loss):
                raise NonFiniteLoss(f"the loss is {loss}")
            return self._optimizer.norm()
        except NonFiniteLoss as error:
            self._optimizer.zero()
            raise NonFiniteLoss(
                f"optimizer step {self._steps}: {error} (loss {loss}); no step was made"
            ) from error

    def _load_reference(self) -> PolicyModel:
        folder = self._config.reference_model
        source = self._source if folder is None else folder
        arch = read_architecture(source)
        if folder is not None and arch.vocabulary != self._arch.vocabulary:
            raise UserError(
                f"reference_model {folder} has a vocabulary of {arch.vocabulary}, the trained model one of "
                f"{self._arch.vocabulary}: their tokens differ"
            )
        self._check_split(arch)
        model = build(source, arch, self._config, self._ranks)
        model.requires_grad_(False).eval()
        return model
