"""A model in shards: each rank holds its part of every tensor, filled from rank 0, which alone reads the
folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from astraflow_core.errors import UserError
from astraflow_plugin_fsdp import context_parallel, tensor_parallel
from astraflow_plugin_fsdp.config import FsdpConfig
from astraflow_plugin_fsdp.context_layout import own
from astraflow_plugin_fsdp.context_parallel import SplitBackbone, of_all_ranks
from astraflow_plugin_fsdp.group import RankGroup
from astraflow_torch_training.adoption import ADAPTER_FILE, given_adapters
from astraflow_torch_training.critic import NOT_PUBLISHED, with_critic, with_value_head
from astraflow_torch_training.export import ADAPTERS
from astraflow_torch_training.lora import with_adapters
from astraflow_torch_training.memory import enough_memory_for_state
from astraflow_torch_training.model import (
    VALUE_HEAD,
    CausalLM,
    TokenPrediction,
    load_model,
    outline,
)
from astraflow_torch_training.trees import check_trees
from astraflow_training.micro_batches import Indices, MicroBatch


@dataclass(frozen=True, slots=True)
class ShardedLM(CausalLM):
    """A :class:`CausalLM` whose ``whole`` is the root of FSDP's groups: everything that reads weights runs
    as its forward method ``compute``. With a ``context`` the ranks of this process group share the tokens of its
    micro-batches, which are padded for them, and each gets the predictions of all. Of a model in ``one_shard`` the
    gathered weights are kept from the first micro-batch of a step to the last."""

    context: Any = None
    one_shard: bool = False

    def predict(
        self,
        micro: MicroBatch,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool = False,
        with_values: bool = False,
    ) -> TokenPrediction:
        """See :meth:`CausalLM.predict`."""

        def compute(part: MicroBatch, mine: Indices) -> tuple[torch.Tensor | None, ...]:
            wanted = targets if part is micro else targets[torch.from_numpy(mine).to(self.device)]
            found = CausalLM.predict(self, part, wanted, temperature, with_entropy, with_values)
            return found.logprobs, found.entropy, found.values

        logprobs, entropy, values = self._run(compute, micro)
        assert logprobs is not None
        return TokenPrediction(logprobs, entropy, values)

    def logit_gradients(
        self, micro: MicroBatch, targets: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """See :meth:`CausalLM.logit_gradients`."""

        def compute(part: MicroBatch, mine: Indices) -> tuple[torch.Tensor | None, ...]:
            wanted = targets if part is micro else targets[torch.from_numpy(mine).to(self.device)]
            return (CausalLM.logit_gradients(self, part, wanted, temperature),)

        (found,) = self._run(compute, micro)
        assert found is not None
        return found

    def values(self, micro: MicroBatch) -> torch.Tensor:
        """See :meth:`CausalLM.values`."""
        (values,) = self._run(lambda part, _: (CausalLM.values(self, part),), micro)
        assert values is not None
        return values

    def _run(
        self,
        compute: Callable[[MicroBatch, Indices], tuple[torch.Tensor | None, ...]],
        micro: MicroBatch,
    ) -> list[torch.Tensor | None]:
        part, mine = micro, np.arange(len(micro.positions))
        if self.context is not None:
            ranks = dist.get_rank(self.context), dist.get_world_size(self.context)
            part, mine = own(micro, *ranks)
        result = self.whole.compute(lambda: [_owned(tensor) for tensor in compute(part, mine)])
        if not torch.is_grad_enabled():  # a backward pass would have done it
            for module in _fsdp_modules(self.whole) if self.one_shard else [self.whole]:
                module.reshard()
        if self.context is not None:
            result = of_all_ranks(result, mine, len(micro.positions), self.context)
        found: list[torch.Tensor | None] = result
        return found


def _owned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Not a view: FSDP hangs its hooks on the tensor."""
    return None if tensor is None else tensor.clone()


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """What is built from a folder, other than shards: see the keys of the same names. With ``adapted`` there
    are adapters, with ``critic`` a value head on the model or a critic from a separate folder."""

    config: FsdpConfig
    attention: str
    gradient_checkpointing: bool = False
    adapted: bool = False
    critic: Path | Literal["head"] | None = None

    def loaded(self, folder: Path) -> CausalLM:
        """The whole model in ``folder`` on CPU, checked."""
        model = load_model(folder, torch.device("cpu"), "sdpa", False, None, like_outline=True)
        if self.config.layout == "tree":
            check_trees(model.backbone, model.whole.config, model.device, folder)
        return model

    def made(self, load: Callable[[Path], CausalLM], folder: Path) -> CausalLM:
        """The model in ``folder`` with what it is to have."""
        model = load(folder)
        if self.adapted:
            with_adapters(model.whole, self.config)
        if self.critic == "head":
            return with_value_head(model)
        return model if self.critic is None else with_critic(model, load(self.critic))


def load_sharded(folder: Path, group: RankGroup, recipe: ModelRecipe) -> ShardedLM:
    """The model in ``folder`` in shards.

    Rank 0 loads and checks it on CPU and the others receive their shards. Raises :class:`UserError` on every
    rank if it cannot be loaded; see :func:`astraflow_torch_training.model.load_model`.
    """
    loaded = outlined = problem = None
    try:
        outlined = recipe.made(
            lambda f: outline(f, recipe.attention, recipe.gradient_checkpointing), folder
        )
        if group.tensor is not None:
            tensor_parallel.check(outlined.whole, _layers(outlined.whole), group.tensor.size())
        if group.context is not None:
            context_parallel.check(outlined.whole, _layers(outlined.whole))
        if group.rank == 0:
            # Kernels for the device may not run here, where only the weights matter.
            loaded = recipe.made(recipe.loaded, folder)
    except UserError as error:
        problem = str(error)
    group.agree(problem)
    assert outlined is not None
    return shard(outlined, loaded, group, recipe.config)


def shard(
    outline: CausalLM, loaded: CausalLM | None, group: RankGroup, config: FsdpConfig
) -> ShardedLM:
    """``outline`` (on ``meta``) in shards, with the weights of ``loaded``, which rank 0 has and the others
    have not.

    In bfloat16 the gathered weights and the activations are in that dtype, sums of gradients float32; a
    value head always computes in float32.
    """
    bfloat16 = torch.bfloat16 if config.compute_dtype == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=torch.float32)
    held: dict[str, Any] = {"mesh": group.mesh}
    one_shard = group.mesh.size(-1) == 1 and not config.cpu_offload
    if one_shard:
        held["reshard_after_forward"] = False
    if config.cpu_offload:
        held["offload_policy"] = CPUOffloadPolicy(pin_memory=group.device.type == "cuda")
    whole, critic = outline.whole, outline.critic
    if group.tensor is not None:
        tensor_parallel.split(_layers(whole), group.tensor)
    for layer in _layers(whole):
        fully_shard(layer, mp_policy=policy, **held)
    if critic is not None:
        fully_shard(critic.backbone, mp_policy=policy, **held)
    for name, module in list(whole.named_modules()):
        if name.split(".")[-1] == VALUE_HEAD:
            fully_shard(module, **held)
    fully_shard(whole, mp_policy=policy, **held)
    whole.compute = MethodType(lambda _, compute: compute(), whole)
    register_fsdp_forward_method(whole, "compute")
    for module in _fsdp_modules(whole):
        # The loss is a sum over the rows of all ranks, not a mean over ranks.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    with enough_memory_for_state("the weights"):
        _materialise(whole, torch.device("cpu") if config.cpu_offload else group.device)
    _to_device(whole, group.device)
    _fill(whole, {} if loaded is None else _tensors(loaded.whole), group)
    backbone = outline.backbone
    if group.context is not None:
        backbone = SplitBackbone(backbone, group.context)
    if critic is not None:
        critic = replace(critic, device=group.device)
    if critic is not None and group.context is not None:
        critic = replace(critic, backbone=SplitBackbone(critic.backbone, group.context))
    return ShardedLM(
        whole,
        backbone,
        outline.head,
        outline.vocabulary,
        group.device,
        None,
        critic,
        outline.replay,
        context=group.context,
        one_shard=one_shard,
    )


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor of which each rank holds a part; a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _fsdp_modules(whole: Any) -> list[FSDPModule]:
    return [module for module in whole.modules() if isinstance(module, FSDPModule)]


def _layers(whole: Any) -> list[Any]:
    """What transformers keeps on one device: decoder layers, the critic's too."""
    names = set(whole._no_split_modules or ())
    return [module for module in whole.modules() if type(module).__name__ in names]


@torch.no_grad()
def _materialise(whole: Any, device: torch.device) -> None:
    """Give every tensor memory. Tied parameters stay tied, which ``to_empty`` alone would end."""
    places: dict[int, list[tuple[Any, str]]] = {}
    for module in whole.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    whole.to_empty(device=device)
    for (module, name), *others in places.values():
        for other, its_name in others:
            other.register_parameter(its_name, getattr(module, name))


def _to_device(whole: Any, device: torch.device) -> None:
    """Buffers are where the layers compute, even if parameters are not."""
    for module in whole.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def adopt(whole: Any, folder: Path, group: RankGroup, recipe: ModelRecipe) -> None:
    """Fill what is published of ``whole`` from a folder that rank 0 reads: see
    :class:`astraflow_core.protocols.trainer.AdoptsWeights`. Raises :class:`UserError` on every rank if it cannot be
    read, or is of another model."""
    given: dict[str, torch.Tensor] = {}
    problem = None
    names = [
        name
        for name, _ in whole.named_parameters()
        if not name.startswith(NOT_PUBLISHED) and name.endswith(ADAPTERS) == recipe.adapted
    ]
    if group.rank == 0:
        try:
            if recipe.adapted:
                given = given_adapters(whole, folder / ADAPTER_FILE)
            else:
                given = _tensors(recipe.loaded(folder).whole)
        except UserError as error:
            problem = str(error)
        if missing := set(names) - given.keys():
            problem = problem or f"{folder} has no {', '.join(sorted(missing)[:3])}"
    group.agree(problem)
    _fill(whole, given, group, frozenset(names))


def _tensors(whole: Any) -> dict[str, torch.Tensor]:
    return {**dict(whole.named_parameters()), **dict(whole.named_buffers())}


@torch.no_grad()
def _fill(
    whole: Any,
    given: dict[str, torch.Tensor],
    group: RankGroup,
    names: frozenset[str] | None = None,
) -> None:
    """Set the parameters of these ``names`` (all) and the buffers to what rank 0 is ``given``."""
    for name, parameter in whole.named_parameters():
        if names is not None and name not in names:
            continue
        here = torch.empty(parameter.shape, dtype=parameter.dtype, device=group.device)
        if given:
            here.copy_(given[name])
        parameter.to_local().copy_(_part(here, parameter, group))
    for name, buffer in whole.named_buffers():
        if name in given:
            buffer.copy_(given[name])
        dist.broadcast(buffer, 0)


def _part(here: torch.Tensor, parameter: DTensor, group: RankGroup) -> torch.Tensor:
    """This rank's part of what rank 0 has ``here``: first of the layer's matrix, then of that for FSDP."""
    if group.tensor is not None:
        split = parameter.device_mesh.ndim > group.mesh.ndim
        place = parameter.placements[-1] if split else Replicate()
        here = distribute_tensor(here, group.tensor, [place]).to_local()
    data = [*[Replicate()] * (group.mesh.ndim - 1), Shard(0)]
    return distribute_tensor(here.contiguous(), group.mesh, data).to_local()
