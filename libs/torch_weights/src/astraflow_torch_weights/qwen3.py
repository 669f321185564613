"""Dense Qwen3 models in PyTorch alone: the modules, names and results of transformers, without the seconds that its import takes.

Used on CPUs, for the checkpoints that :meth:`~astraflow_torch_weights.qwen3_config.Qwen3Config.read` recognises; transformers loads all
others. The architecture is that of Yang et al. 2025, arXiv:2505.09388; each operation is that of ``transformers.models.qwen3``, in its
order and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional

from astraflow_torch_weights.qwen3_config import Qwen3Config, tensor_names

Attend = Callable[..., tuple[torch.Tensor, Any]]
"""As transformers calls attention: see :func:`attend`."""


class Qwen3Cache(Protocol):
    """Keys and values of the tokens before those of a pass."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of layer ``layer_idx``, ``[B, G, T, D]``; returns all that it is to see."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before those of this pass."""


class CachedLayer(NamedTuple):
    """Keys and values of one layer, ``[B, G, T, D]`` each."""

    keys: torch.Tensor
    values: torch.Tensor


class GrowingCache:
    """A cache that begins empty and keeps everything, as the ``DynamicCache`` of transformers."""

    def __init__(self) -> None:
        self.layers: list[CachedLayer] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`Qwen3Cache`."""
        if layer_idx == len(self.layers):
            self.layers.append(CachedLayer(key_states, value_states))
        else:
            before = self.layers[layer_idx]
            self.layers[layer_idx] = CachedLayer(
                torch.cat([before.keys, key_states], dim=-2),
                torch.cat([before.values, value_states], dim=-2),
            )
        return self.layers[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """See :class:`Qwen3Cache`."""
        return self.layers[layer_idx].keys.shape[-2] if layer_idx < len(self.layers) else 0


def empty_cache(model: Any) -> Any:
    """A cache for passes of a model of this module or of transformers; ``layers`` have ``keys`` and ``values``."""
    if isinstance(model, Qwen3ForCausalLM):
        return GrowingCache()
    from transformers.cache_utils import DynamicCache

    return DynamicCache()


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    position_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None]:
    """Of ``query`` ``[B, H, T, D]``, ``key`` and ``value`` ``[B, G, S, D]`` with H a multiple of G, and a mask that is added or bool,
    ``[B or 1, 1, T, S]``: ``[B, T, H, D]``. Without a mask it is causal, and the last query is at the last key; ``position_ids`` that
    begin again within a row begin another sequence. :class:`ValueError` for a mask of other dimensions."""
    if mask is not None and mask.ndim != 4:
        raise ValueError(
            f"a mask has the shape [B or 1, 1, T, S]; this one has {tuple(mask.shape)}"
        )
    heads, length = query.shape[1:3]
    shared = heads // key.shape[1]
    options: dict[str, Any] = {}
    if mask is None and length > 1:
        mask = _causal_mask(query, key, position_ids)
        options["is_causal"] = mask is None
    if shared > 1 and mask is None and key.shape[-1] <= 256:
        options["enable_gqa"] = True
    elif shared > 1 and length == 1:
        query = query.reshape(len(query), -1, shared, query.shape[-1])
    elif shared > 1:
        key, value = (states.repeat_interleave(shared, 1) for states in (key, value))
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, **options
    )
    found = found.reshape(len(found), heads, length, value.shape[-1])
    return found.transpose(1, 2).contiguous(), None


def _causal_mask(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor | None
) -> torch.Tensor | None:
    """Bool ``[B or 1, 1, T, S]``, or ``None`` where each row is one sequence from its beginning."""
    length, keys = query.shape[2], key.shape[2]
    if keys > length:
        at = torch.arange(keys - length, keys, device=key.device)
        return (torch.arange(keys, device=key.device) <= at[:, None])[None, None]
    if positions is None or positions.shape[-1] != length:
        return None
    starts = functional.pad(positions.diff() != 1, (1, 0))
    if not starts.any():
        return None
    sequence, at = starts.cumsum(1), torch.arange(length, device=key.device)
    return ((at <= at[:, None]) & (sequence[:, None] == sequence[:, :, None]))[:, None]


class Qwen3RMSNorm(nn.Module):
    """``w x / sqrt(mean(x²) + eps)`` over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[…, size]``."""
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden.dtype)


class Qwen3MLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, size, bias=False)
        self.up_proj = nn.Linear(hidden, size, bias=False)
        self.down_proj = nn.Linear(size, hidden, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[…, hidden]``."""
        found: torch.Tensor = self.down_proj(
            self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden)
        )
        return found


class Rotation(NamedTuple):
    """Cosine and sine of the angle of each position and dimension, ``[B or 1, 1, T, D]``."""

    cos: torch.Tensor
    sin: torch.Tensor

    def of(self, states: torch.Tensor) -> torch.Tensor:
        """``[B, H, T, D]`` turned (Su et al. 2021, arXiv:2104.09864)."""
        first, second = states.chunk(2, -1)
        return (states * self.cos) + (torch.cat((-second, first), dim=-1) * self.sin)


class Qwen3Attention(nn.Module):
    """Queries of several heads share keys and values; both are normalised in each head and turned."""

    def __init__(self, config: Qwen3Config, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = layer_idx, config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attend: Attend = attend
        hidden = config.hidden_size
        queries = config.num_attention_heads * self.head_dim
        keys = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.q_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: Rotation,
        mask: torch.Tensor | None,
        cache: Qwen3Cache | None,
        position_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        """``[B, T, hidden]``."""
        shape = (*hidden.shape[:-1], -1, self.head_dim)
        query = rotation.of(self.q_norm(self.q_proj(hidden).view(shape)).transpose(1, 2))
        key = rotation.of(self.k_norm(self.k_proj(hidden).view(shape)).transpose(1, 2))
        value = self.v_proj(hidden).view(shape).transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        found, _ = self.attend(
            self, query, key, value, mask, scaling=self.scaling, position_ids=position_ids
        )
        result: torch.Tensor = self.o_proj(found.flatten(2))
        return result


class Qwen3DecoderLayer(nn.Module):
    """Attention and MLP, each after a norm and beside its input."""

    def __init__(self, config: Qwen3Config, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = Qwen3Attention(config, layer_idx)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, *how: Any) -> torch.Tensor:
        """``[B, T, hidden]``; ``how`` as for :class:`Qwen3Attention`."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), *how)
        result: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class ModelStates(NamedTuple):
    """Hidden states ``[B, T, hidden]`` after the last norm."""

    last_hidden_state: torch.Tensor


class ModelLogits(NamedTuple):
    """Logits ``[B, T or those kept, V]``."""

    logits: torch.Tensor


class Qwen3Model(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        # Not drawn at random: on the device "meta" that imports the compiler of torch, which takes a second.
        self.embed_tokens: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            torch.empty(config.vocab_size, config.hidden_size),
            freeze=False,
            padding_idx=config.pad_token_id,
        )
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)

    def get_input_embeddings(self) -> nn.Embedding:
        """The embeddings of tokens."""
        return self.embed_tokens

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Qwen3Cache | None = None,
        use_cache: bool = False,
    ) -> ModelStates:
        """``input_ids`` and ``position_ids`` (default: one after the other) int64 ``[B or 1, T]``, a mask as of :func:`attend`, and
        the cache, if there is one."""
        hidden = self.embed_tokens(input_ids)
        # With a cache a row is one sequence, whatever its positions are.
        packed = position_ids if past_key_values is None else None
        if position_ids is None:
            first = 0 if past_key_values is None else past_key_values.get_seq_length()
            end = first + input_ids.shape[1]
            position_ids = torch.arange(first, end, device=input_ids.device)[None]
        rotation = self._rotation(position_ids, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, rotation, attention_mask, past_key_values, packed)
        return ModelStates(self.norm(hidden))

    @torch.no_grad()
    def _rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        size, device = self.config.head_dim, positions.device
        steps = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
        angles = positions[..., None].float() * (1.0 / (self.config.rope_theta**steps))
        both = torch.cat((angles, angles), dim=-1)[:, None]
        return Rotation(both.cos().to(dtype), both.sin().to(dtype))


class Qwen3ForCausalLM(nn.Module):
    """:class:`Qwen3Model` and a linear head, whose weights may be the embeddings. ``attention``: what its layers compute it by."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.model = Qwen3Model(config)
        self.attention: Attend = attend
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def base_model(self) -> Qwen3Model:
        """The model without its head."""
        return self.model

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.lm_head.weight.dtype

    def get_input_embeddings(self) -> nn.Embedding:
        """The embeddings of tokens."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """The head."""
        return self.lm_head

    def attend_by(self, function: Attend) -> None:
        """Have every layer compute attention by ``function``, which is called as :func:`attend`."""
        self.attention = function
        for module in self.modules():
            if isinstance(module, Qwen3Attention):
                module.attend = function

    def forward(
        self, input_ids: torch.Tensor, logits_to_keep: int | torch.Tensor = 0, **arguments: Any
    ) -> ModelLogits:
        """Arguments as of :class:`Qwen3Model`. ``logits_to_keep``: only of the last so many positions (0: all), or of those with these
        indices, int64 ``[K]``."""
        hidden = self.model(input_ids, **arguments).last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return ModelLogits(self.lm_head(hidden[:, kept]))


def load_qwen3(
    config: Qwen3Config, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> Qwen3ForCausalLM:
    """The model that ``config`` describes, on the CPU, with copies of the ``tensors`` of its file
    (:data:`~astraflow_torch_weights.qwen3_config.WEIGHTS`) in ``dtype``. Raises :class:`ValueError` if one has another shape."""
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    given = {name: tensors[name].to(dtype, copy=True) for name in tensor_names(config)}
    if config.tie_word_embeddings:
        given["lm_head.weight"] = given["model.embed_tokens.weight"]
    try:
        model.load_state_dict(given, assign=True)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model
