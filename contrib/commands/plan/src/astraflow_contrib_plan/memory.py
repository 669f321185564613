"""Bytes that a process needs on one device, part by part.

Of a trainer: weights, gradients and the two moments of AdamW in float32 are 16 bytes for each trained parameter (Rajbhandari
et al. 2020, "ZeRO", section 3), shared by ranks as the trainer shares them; activations follow from the tensors that
PyTorch keeps for the backward pass of one layer (:func:`kept_per_token`). Of an engine: weights, and keys and values of 2 · layers ·
key-value heads · head size numbers for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from astraflow_contrib_plan.shapes import ModelShape

GIB = 1 << 30
LOGITS_AT_ONCE = 1 << 26
"""Logits of one chunk, as ``astraflow_torch_training.logprobs`` has them."""
CUDA_CONTEXT = GIB
"""Of a process with a CUDA context and the workspaces of its libraries: assumed."""
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_OPTIMIZER_BYTES = {"adamw": 8.0, "adamw8bit": 2.0 + 2 * 4 / 256}
"""Of a trained parameter; of adamw8bit two moments of one byte, and a scale of each for every 256."""


@dataclass(frozen=True)
class TrainerSetting:
    """What decides the memory of one rank. ``kind``: ``torch``, ``fsdp`` or ``megatron``; ``longest``: tokens of the longest
    row; ``reference``: whether the algorithm compares with the initial model; ``critic``: whether a separate model gives values."""

    kind: str
    ranks: int
    micro_batch_tokens: int
    longest: int
    compute_bytes: int = 4
    checkpointing: bool = False
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    optimizer: str = "adamw"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    whole_gradient: bool = False
    cpu_offload: bool = False
    reference: bool = False
    critic: bool = False
    gpu: bool = True

    @property
    def tokens(self) -> int:
        """Of the largest forward pass of a rank: a row that is longer than a micro-batch is processed alone."""
        return max(self.micro_batch_tokens, ceil(self.longest / self.context_parallel))


def setting_of(
    kind: str, ranks: int, keys: Mapping[str, Any], longest: int, needs: frozenset[str], gpu: bool
) -> TrainerSetting:
    """The setting that the keys of a trainer mean."""
    default_tokens = 16384 if gpu else 2048
    return TrainerSetting(
        kind=kind,
        ranks=ranks,
        micro_batch_tokens=keys.get("micro_batch_tokens") or default_tokens,
        longest=longest,
        compute_bytes=_DTYPE_BYTES.get(keys.get("compute_dtype", "float32"), 4),
        checkpointing=bool(keys.get("gradient_checkpointing", False)),
        lora_rank=int(keys.get("lora_rank", 0)),
        lora_targets=tuple(keys.get("lora_targets", ())),
        optimizer=str(keys.get("optimizer", "adamw")),
        replicas=int(keys.get("replicas", 1)),
        tensor_parallel=int(keys.get("tensor_parallel", 1)),
        pipeline_parallel=int(keys.get("pipeline_parallel", 1)),
        context_parallel=int(keys.get("context_parallel", 1)),
        whole_gradient=keys.get("reduce") == "last",
        cpu_offload=bool(keys.get("cpu_offload", False)),
        reference="reference" in needs,
        critic="values" in needs and keys.get("critic") == "model",
        gpu=gpu,
    )


def trainer_memory(shape: ModelShape, s: TrainerSetting) -> dict[str, float]:
    """Part → bytes on the device of one rank, the fullest."""
    whole = shape.parameters * (2 if s.critic else 1)
    trained = shape.adapters(s.lora_rank, s.lora_targets) if s.lora_rank else whole
    parts = (
        _of_megatron(whole, trained, s)
        if s.kind == "megatron"
        else _of_torch(shape, whole, trained, s)
    )
    if s.reference and not s.lora_rank:
        parts["reference model"] = shape.parameters * 4 / _shards(s)
    parts["activations"] = activations(shape, s)
    parts["logits"] = 3 * 4 * float(min(s.tokens * shape.vocab, LOGITS_AT_ONCE))
    if s.gpu:
        parts["CUDA"] = float(CUDA_CONTEXT)
    return {name: size for name, size in parts.items() if size}


def _shards(s: TrainerSetting) -> int:
    """Among how many ranks the weights are shared."""
    if s.kind == "megatron":
        return s.tensor_parallel * s.pipeline_parallel
    return max(1, s.ranks // s.replicas) if s.kind == "fsdp" else 1


def _of_torch(shape: ModelShape, whole: int, trained: int, s: TrainerSetting) -> dict[str, float]:
    """Of the trainers ``torch``, which has all on one device, and ``fsdp``, which shares it among ranks (ZeRO stage 3)."""
    shards = _shards(s)
    held = whole + (trained if s.lora_rank else 0)
    parts = {"weights": 4 * held / shards, "gradients": 4 * trained / shards}
    parts["optimizer"] = _optimizer(shape, trained, s) / shards
    if s.cpu_offload:
        parts = dict.fromkeys(parts, 0.0)
    if shards > 1:
        # One layer is computed while the next one is gathered; embedding and output layer are one unit.
        units = [shape.layer / s.tensor_parallel, float(shape.ends)]
        parts["gathered weights"] = s.compute_bytes * (max(units) + units[0])
        if s.whole_gradient and not s.lora_rank:
            parts["gathered gradients"] = 4.0 * whole / s.tensor_parallel
    elif s.compute_bytes == 2:
        parts["weights in bfloat16"] = 2.0 * (shape.layers * shape.matrices + shape.ends)
    return parts


def _optimizer(shape: ModelShape, trained: int, s: TrainerSetting) -> float:
    if s.optimizer == "muon" and not s.lora_rank:
        matrices = min(trained, shape.layers * shape.matrices)
        return 4.0 * matrices + 8.0 * (
            trained - matrices
        )  # one moment of matrices, two of the rest
    return _OPTIMIZER_BYTES.get(s.optimizer, 8.0) * trained


def _of_megatron(whole: int, trained: int, s: TrainerSetting) -> dict[str, float]:
    """Of Megatron-Core: gradients in float32, optimizer and float32 weights shared by the ranks that hold the same part."""
    shards = _shards(s)
    same = max(1, s.ranks // shards)
    masters = 4 if s.compute_bytes == 2 else 0
    return {
        "weights": s.compute_bytes * whole / shards,
        "gradients": 4 * trained / shards,
        "optimizer": (8 + masters) * trained / shards / same,
    }


def kept_per_token(shape: ModelShape, compute_bytes: int) -> float:
    """Bytes that PyTorch keeps of one token of one layer for its backward pass, without checkpointing.

    In float32, in numbers: of both norms their input, the normalised values and the result (6 hidden), the rotated queries and
    keys, values and the result of attention, and of the MLP gate, its activation, up and their product (4 · intermediate); of norms
    of queries and keys input and normalised values. Under autocast norms stay in float32, and their results are cast once for
    each of the five matrices that take them. Attention is one kernel that keeps no scores.
    """
    q, k, h = shape.queries, shape.keys, shape.hidden
    attention = 2.0 * q + 2.0 * k
    normed = float(q + k) if shape.qk_norm else 0.0
    if shape.experts:
        mlp = (4.0 * shape.expert_size + 2.0 * h) * shape.active_experts
    else:
        mlp = 4.0 * shape.intermediate
    if compute_bytes == 4:
        return 4 * (6.0 * h + attention + mlp + 2 * normed)
    return 4 * 4.0 * h + 2 * (5.0 * h + attention + mlp) + 6 * normed


def activations(shape: ModelShape, s: TrainerSetting) -> float:
    """Bytes kept for the backward pass of one micro-batch; with checkpointing the input of each layer, and one layer whole.
    Pipeline ranks hold as many micro-batches as there are ranks."""
    kept = kept_per_token(shape, s.compute_bytes)
    share = s.tensor_parallel
    layers = ceil(shape.layers / s.pipeline_parallel)
    inputs = 4.0 * shape.hidden
    if s.tensor_parallel > 1:  # norms and residuals are whole on each rank
        whole = 4.0 * 6 * shape.hidden
        kept = whole + max(0.0, kept - whole) / share
    per_token = layers * inputs + kept if s.checkpointing else layers * kept
    return s.tokens * (per_token * s.pipeline_parallel + 3 * inputs)


@dataclass(frozen=True)
class EngineSetting:
    """What decides the memory of one engine host on one device. ``cache_gb`` or ``utilization`` limits keys and values;
    ``context``: most tokens of a sequence; ``batch``: most sequences at once; ``sequence``: tokens of a usual one."""

    kind: str
    weight_bytes: int
    tensor_parallel: int = 1
    cache_gb: float | None = None
    utilization: float | None = None
    context: int = 0
    batch: int = 256
    gpu: bool = True


def engine_memory(shape: ModelShape, s: EngineSetting, total: float) -> dict[str, float]:
    """Part → bytes on each device of one engine. With ``utilization`` keys and values get what the weights leave of that
    share of ``total``; at least those of one sequence."""
    weights = shape.parameters * s.weight_bytes / s.tensor_parallel
    shared = min(s.tensor_parallel, shape.kv_heads)
    per_token = shape.cache_per_token * s.weight_bytes / shared
    least = per_token * s.context
    if s.cache_gb is not None:
        cache = s.cache_gb * GIB
    else:
        cache = max(least, (s.utilization or 0.9) * total - weights - CUDA_CONTEXT)
    parts = {"weights": weights, "keys and values": float(cache)}
    parts["logits"] = 2 * 4 * float(s.batch * shape.vocab) / s.tensor_parallel
    if s.gpu:
        parts["CUDA"] = float(CUDA_CONTEXT)
    return parts


def cache_tokens(shape: ModelShape, s: EngineSetting, parts: Mapping[str, float]) -> int:
    """How many tokens the keys and values of an engine have room for."""
    shared = min(s.tensor_parallel, shape.kv_heads)
    return int(parts["keys and values"] * shared / (shape.cache_per_token * s.weight_bytes))


def changed(s: TrainerSetting, **keys: Any) -> TrainerSetting:
    """The setting with other values."""
    return replace(s, **keys)
