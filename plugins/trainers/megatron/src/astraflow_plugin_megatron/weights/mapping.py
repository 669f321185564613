"""Which Hugging Face tensors each parameter of Megatron-Core's GPT combines, and how.

Megatron-Core packs queries, keys and values per query group, ``[q … q k v]`` for each, so that a tensor
parallel rank gets whole groups; and of the gated feed-forward a rank holds its share of the gates above its
share of the ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from astraflow_plugin_megatron.architecture import Architecture
from astraflow_torch_training.export import PEFT_PREFIX

Packing = Literal["whole", "rows", "columns", "vocabulary", "qkv", "gated"]
Named = tuple[str, tuple[int, ...]]
ADAPTERS = "adapters"
"""Name of what a linear module of Megatron-Core's holds of adapters."""
HALVES = ("lora_A", "lora_B")


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """One parameter. ``names``: its names in the model of pipeline ``stage`` (of a layer by its number
    *within* that stage), with the modules of Megatron-Core alone and with those of TransformerEngine.
    ``sources``: names and shapes of the Hugging Face tensors. ``part`` is the expert parallel rank that holds it,
    ``None`` if all do. A ``copy`` of another parameter (tied embeddings in two stages) is loaded and not
    exported."""

    names: tuple[str, ...]
    sources: tuple[Named, ...]
    packing: Packing
    stage: int
    part: int | None = None
    copy: bool = False


def entries(arch: Architecture, stages: int, parts: int = 1) -> Iterator[ParameterMapping]:
    """All parameters of a model shared out over pipeline ``stages``, its experts over ``parts``, in the order of
    the model."""
    embedding = ("model.embed_tokens.weight", (arch.vocabulary, arch.hidden))
    yield ParameterMapping(("embedding.word_embeddings.weight",), (embedding,), "vocabulary", 0)
    each = arch.layers // stages
    for number in range(arch.layers):
        yield from _layer(arch, number, number % each, number // each, parts)
    last, size = stages - 1, (arch.hidden,)
    norm = ("model.norm.weight", size)
    yield ParameterMapping(("decoder.final_layernorm.weight",), (norm,), "whole", last)
    if not arch.tied:
        head = ("lm_head.weight", (arch.vocabulary, arch.hidden))
        yield ParameterMapping(("output_layer.weight",), (head,), "vocabulary", last)
    elif stages > 1:
        yield ParameterMapping(
            ("output_layer.weight",), (embedding,), "vocabulary", last, copy=True
        )


def value_head(arch: Architecture, stages: int) -> Iterator[ParameterMapping]:
    """The critic's parameters, which are not part of the Hugging Face model."""
    for name, shape in (("value_head.weight", (1, arch.hidden)), ("value_head.bias", (1,))):
        yield ParameterMapping((name,), ((name, shape),), "whole", stages - 1)


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """Of the Hugging Face model: its whole ``name``, the last part of which may be a ``target`` of adapters, and the
    ``shape`` of its weight, [out, in]."""

    name: str
    target: str
    shape: tuple[int, int]


def linear_layers(entry: ParameterMapping) -> list[LinearLayer]:
    """Those whose weights a parameter combines, in their order; none for other parameters."""
    found = []
    for name, shape in entry.sources:
        stem, _, what = name.rpartition(".")
        if entry.packing in ("qkv", "gated", "columns") and what == "weight":
            found.append(LinearLayer(stem, stem.rpartition(".")[2], (shape[0], shape[1])))
    return found


def adapters_of(
    entry: ParameterMapping, layer: LinearLayer, rank: int
) -> tuple[ParameterMapping, ParameterMapping]:
    """A and B of an adapter on one of the :func:`linear_layers` of a parameter, under PEFT's names."""
    module = entry.names[0].rpartition(".")[0]
    packings: tuple[Packing, Packing] = (
        ("columns", "whole") if entry.packing == "columns" else ("whole", "rows")
    )
    low, high = (
        ParameterMapping(
            (f"{module}.{ADAPTERS}.{layer.target}.{half}",),
            ((f"{PEFT_PREFIX}{layer.name}.{half}.weight", shape),),
            packing,
            entry.stage,
        )
        for half, shape, packing in zip(
            HALVES, ((rank, layer.shape[1]), (layer.shape[0], rank)), packings, strict=True
        )
    )
    return low, high


def adapter_entries(
    arch: Architecture, stages: int, rank: int, targets: Sequence[str]
) -> Iterator[ParameterMapping]:
    """All adapters of ``rank`` on the layers that ``targets`` name, in the order of the model."""
    for entry in entries(arch, stages):
        for layer in linear_layers(entry):
            if layer.target in targets:
                yield from adapters_of(entry, layer, rank)


def _layer(
    arch: Architecture, number: int, local: int, stage: int, parts: int
) -> Iterator[ParameterMapping]:
    hidden, head = arch.hidden, arch.head_size
    queries, keys = arch.heads * head, arch.groups * head

    def entry(
        names: Sequence[str], packing: Packing, *sources: Named, part: int | None = None
    ) -> ParameterMapping:
        return ParameterMapping(
            tuple(f"decoder.layers.{local}.{name}" for name in names),
            tuple((f"model.layers.{number}.{name}", shape) for name, shape in sources),
            packing,
            stage,
            part,
        )

    def gated(
        ours: str, theirs: str, ffn: int, part: int | None = None
    ) -> Iterator[ParameterMapping]:
        gate, up = ((f"{theirs}.{one}_proj.weight", (ffn, hidden)) for one in ("gate", "up"))
        yield entry((f"{ours}.linear_fc1.weight",), "gated", gate, up, part=part)
        down = (f"{theirs}.down_proj.weight", (hidden, ffn))
        yield entry((f"{ours}.linear_fc2.weight",), "columns", down, part=part)

    yield entry(
        ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
        "whole",
        ("input_layernorm.weight", (hidden,)),
    )
    for part, tail in (("weight", (hidden,)), ("bias", ())):
        if part == "weight" or arch.qkv_bias:
            yield entry(
                (f"self_attention.linear_qkv.{part}",),
                "qkv",
                (f"self_attn.q_proj.{part}", (queries, *tail)),
                (f"self_attn.k_proj.{part}", (keys, *tail)),
                (f"self_attn.v_proj.{part}", (keys, *tail)),
            )
    if arch.qk_norm:
        for one in "qk":
            yield entry(
                (f"self_attention.{one}_layernorm.weight",),
                "whole",
                (f"self_attn.{one}_norm.weight", (head,)),
            )
    yield entry(
        ("self_attention.linear_proj.weight",),
        "columns",
        ("self_attn.o_proj.weight", (hidden, queries)),
    )
    yield entry(
        ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
        "whole",
        ("post_attention_layernorm.weight", (hidden,)),
    )
    if arch.experts is None:
        yield from gated("mlp", "mlp", arch.ffn)
        return
    experts = arch.experts
    yield entry(("mlp.router.weight",), "whole", ("mlp.gate.weight", (experts.number, hidden)))
    each = experts.number // parts
    for expert in range(experts.number):
        ours = f"mlp.experts.local_experts.{expert % each}"
        yield from gated(ours, f"mlp.experts.{expert}", experts.ffn, expert // each)


def pack(
    packing: Packing, tensors: Sequence[torch.Tensor], arch: Architecture, rank: int, ranks: int
) -> torch.Tensor:
    """The share of tensor parallel ``rank`` of ``ranks`` in the parameter that combines the full ``tensors``."""

    def part(tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return tensor.chunk(ranks, axis)[rank]

    match packing:
        case "qkv":
            groups = [_grouped(tensor, arch) for tensor in tensors]
            return part(torch.cat(groups, 1)).flatten(0, 1)
        case "gated":
            return torch.cat([part(tensor) for tensor in tensors])
        case "rows":
            return part(tensors[0])
        case "columns":
            return part(tensors[0], 1)
        case "vocabulary":
            missing = arch.padded_vocabulary(ranks) - arch.vocabulary
            return part(torch.nn.functional.pad(tensors[0], (0, 0, 0, missing)))
        case "whole":
            return tensors[0]


def unpack(
    packing: Packing, shares: Sequence[torch.Tensor], arch: Architecture
) -> list[torch.Tensor]:
    """The full tensors again, from the shares of all tensor parallel ranks in order."""
    match packing:
        case "qkv":
            head, per_group = arch.head_size, arch.heads // arch.groups
            groups = _grouped(torch.cat(list(shares)), arch)
            parts = torch.split(groups, [per_group * head, head, head], 1)
            return [tensor.flatten(0, 1) for tensor in parts]
        case "gated":
            halves = [share.chunk(2) for share in shares]
            return [torch.cat([half[which] for half in halves]) for which in (0, 1)]
        case "rows":
            return [torch.cat(list(shares))]
        case "columns":
            return [torch.cat(list(shares), 1)]
        case "vocabulary":
            return [torch.cat(list(shares))[: arch.vocabulary]]
        case "whole":
            return [shares[0]]


def _grouped(rows: torch.Tensor, arch: Architecture) -> torch.Tensor:
    """``[groups, rows of each, …]``."""
    return rows.reshape(arch.groups, rows.shape[0] // arch.groups, *rows.shape[1:])
