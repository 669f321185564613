"""Megatron-Core's GPT as a policy: what it says of tokens, not logits, leaves the last stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    HAVE_TE,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from astraflow_core.types.generation import RoutedExperts
from astraflow_plugin_megatron.architecture import Architecture
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.model.logprobs import token_logprobs
from astraflow_plugin_megatron.model.norms import with_norms
from astraflow_plugin_megatron.model.routing import StageRouterReplay
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_plugin_megatron.weights.folder import load_folder

VALUE_HEAD = "value_head"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the last stage: rows of its output, in this order."""

    logprobs: bool = True
    entropy: bool = False
    logit_gradients: bool = False
    values: bool = False


class PolicyModel(GPTModel):  # type: ignore[misc]
    """One pipeline stage of the model. Layers of TransformerEngine need no mask to be causal; those of
    Megatron-Core are given one, or each would make its own."""

    causal_layers = False
    replay: StageRouterReplay

    def forward(
        self,
        input_ids: torch.Tensor,
        states: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        vocabulary: int,
        wanted: Wanted,
        routed: RoutedExperts | None = None,
    ) -> torch.Tensor:
        """The next stage's input ``[T, B, H]`` (with sequence parallelism its share of the positions) or, of the
        last stage, a row ``[n]`` in float32 for each that is ``wanted``: what :func:`~astraflow_plugin_megatron.model.logprobs.token_logprobs` gives for ``targets`` (int64
        ``[n]``), predicted by the hidden states ``states`` (int64 ``[n]``, counted over ``B · T``) of
        ``input_ids`` (int64 ``[B, T]``), and the values of these states. ``routed`` ``[B · T, layers, top_k]``: recorded
        experts of the inputs, which are imposed."""
        length = input_ids.shape[1]
        self.replay.impose(routed, len(input_ids), input_ids.device)
        if self.config.sequence_parallel:
            missing = -length % self.config.tensor_model_parallel_size
            input_ids = torch.nn.functional.pad(input_ids, (0, missing))
        embedded = None
        if self.pre_process:
            embedded = self.embedding(input_ids=input_ids, position_ids=None)
            if self.config.recompute_granularity and torch.is_grad_enabled():
                # A frozen embedding's would end the gradient at a layer that is computed again.
                embedded.requires_grad_()
        hidden = self.decoder(
            hidden_states=embedded,
            attention_mask=None if self.causal_layers else _later(input_ids),
            rotary_pos_emb=self.rotary_pos_emb(input_ids.shape[1]),
        )
        if not self.post_process:
            return cast(torch.Tensor, hidden)
        if self.config.sequence_parallel:
            # What follows is computed alike on all ranks, so a rank takes its part of a whole gradient.
            hidden = gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=False, group=self.pg_collection.tp
            )
        flat = hidden[:length].transpose(0, 1).flatten(0, 1).index_select(0, states)
        rows: list[torch.Tensor] = []
        if wanted.logprobs or wanted.logit_gradients:
            rows.extend(self._of_tokens(flat, targets, temperature, vocabulary, wanted))
        if wanted.values:
            head = self.get_submodule(VALUE_HEAD)
            rows.append(head(flat.float()).squeeze(-1))
        return torch.stack(rows)

    def _of_tokens(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        vocabulary: int,
        wanted: Wanted,
    ) -> torch.Tensor:
        weight = None
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        return token_logprobs(
            lambda chosen: self.output_layer(chosen, weight=weight)[0],
            hidden,
            targets,
            temperature,
            vocabulary,
            self.pg_collection.tp,
            wanted.entropy,
            with_gradients=wanted.logit_gradients,
        )


def _later(input_ids: torch.Tensor) -> torch.Tensor:
    """Which places a place does not see, bool ``[1, 1, T, T]``. Padding is on the right: no other mask."""
    length = input_ids.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=input_ids.device)
    return square.triu(1)[None, None]


def build(folder: Path, arch: Architecture, config: MegatronConfig, mesh: Mesh) -> PolicyModel:
    """This rank's part of the model in ``folder``, with its weights."""
    on_cpu = mesh.device.type == "cpu"
    spec: Any
    fused = HAVE_TE and not on_cpu
    experts = None if arch.experts is None else arch.experts.number
    if fused:
        spec = get_gpt_layer_with_transformer_engine_spec(
            experts, moe_grouped_gemm=False, qk_layernorm=arch.qk_norm
        )
    else:
        layer = get_gpt_layer_local_spec(
            experts, moe_grouped_gemm=False, qk_layernorm=arch.qk_norm, normalization="RMSNorm"
        )
        spec = with_norms(layer, arch.layers // config.pipeline_parallel, arch.qk_norm)
    scaling = {} if arch.rope_factor is None else {"rope_scaling_factor": arch.rope_factor}
    model = PolicyModel(
        config=_transformer(arch, config, on_cpu),
        transformer_layer_spec=spec,
        vocab_size=arch.padded_vocabulary(mesh.layout.tensor),
        max_sequence_length=arch.context,
        pre_process=mesh.first_stage,
        post_process=mesh.last_stage,
        parallel_output=True,
        share_embeddings_and_output_weights=arch.tied,
        position_embedding_type="rope",
        rotary_base=arch.rope_base,
        rope_scaling=arch.rope_factor is not None,
        **scaling,
    )
    model.causal_layers = fused
    model.replay = StageRouterReplay(model.decoder.layers, arch, config.gradient_checkpointing)
    if config.sequence_parallel and mesh.last_stage:
        # Its input is chosen from all positions: whole on each rank.
        model.output_layer.sequence_parallel = False
        model.output_layer.allreduce_dgrad = True
    model.to(mesh.device)
    load_folder(model, folder, arch, mesh)
    return model


def add_value_head(model: PolicyModel, arch: Architecture, mesh: Mesh) -> None:
    """On the last stage, float32 and 0 everywhere at first."""
    if not mesh.last_stage:
        return
    head = torch.nn.Linear(arch.hidden, 1, device=mesh.device, dtype=torch.float32)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    model.add_module(VALUE_HEAD, head)


def _transformer(arch: Architecture, config: MegatronConfig, on_cpu: bool) -> TransformerConfig:
    dtype = DTYPES[config.compute_dtype]
    recompute = (
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        if config.gradient_checkpointing
        else {}
    )
    return TransformerConfig(
        num_layers=arch.layers,
        hidden_size=arch.hidden,
        ffn_hidden_size=arch.ffn,
        num_attention_heads=arch.heads,
        num_query_groups=arch.groups,
        kv_channels=arch.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=arch.qkv_bias,
        qk_layernorm=arch.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        # Fusions that need Apex or a compiler; TransformerEngine brings its own.
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        # Though every weight is read from the folder: only initialisation marks parameters as shared out
        # over tensor parallel ranks, without which the norm of the gradient leaves most of it out.
        perform_initialization=True,
        use_cpu_initialization=on_cpu,
        tensor_model_parallel_size=config.tensor_parallel,
        sequence_parallel=config.sequence_parallel,
        pipeline_model_parallel_size=config.pipeline_parallel,
        variable_seq_lengths=True,  # micro-batches differ in shape
        moe_token_dispatcher_type="alltoall",  # what that demands, even without experts
        expert_model_parallel_size=config.expert_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # A loss is a sum of shares fixed for the mini-batch: nothing is averaged over micro-batches or ranks.
        calculate_per_token_loss=True,
        **recompute,
        **_experts(arch),
    )


def _experts(arch: Architecture) -> dict[str, Any]:
    """Tokens go to the experts of the highest scores, none is dropped, and no loss of balance is added: the
    log-probs are those of the engine that sampled."""
    if arch.experts is None:
        return {}
    if (
        not HAVE_TE
    ):  # Megatron-Core asks whether this is None, having imported it with TransformerEngine only
        moe_utils.te_general_gemm = None
    return {
        "num_moe_experts": arch.experts.number,
        "moe_ffn_hidden_size": arch.experts.ffn,
        "moe_router_topk": arch.experts.routed,
        "moe_router_pre_softmax": not arch.experts.normalised,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
    }
