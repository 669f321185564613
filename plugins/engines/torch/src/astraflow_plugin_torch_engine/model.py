"""The model of a Hugging Face folder: loading it, what it says about itself, and its three forward passes.

The caller of a pass has torch in inference mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from astraflow_core.errors import UserError
from astraflow_core.types import Images
from astraflow_plugin_torch_engine.cache import TILE, Entries, KVPool
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_torch_weights.batch_invariant import make_batch_invariant
from astraflow_torch_weights.device import engine_device
from astraflow_torch_weights.images import ImageEncoder, reads_images
from astraflow_torch_weights.qwen3 import empty_cache, load_qwen3
from astraflow_torch_weights.qwen3_config import WEIGHTS, Qwen3Config
from astraflow_torch_weights.routers import RouterRecorder

_SCORE_CHUNK = 512
_GIB = 1 << 30


class CausalModel:
    """A causal LM in evaluation mode on one device.

    ``eos``: the ids that end a sequence by the model's own word. ``context_length``: the most tokens of a
    sequence. ``cache_tokens``: how many tokens fit into ``cache_gb``, a power of two. ``vocab``: ids are
    in ``[0, vocab)``. ``recorder``: of the experts that it chooses, if it has some. ``images``: what it makes of images, if it
    reads some.
    """

    def __init__(self, folder: Path, config: TorchEngineConfig) -> None:
        """Load ``folder``; raises :class:`UserError` if it cannot be served."""
        self.folder = folder
        self.device = engine_device("torch", config.device)
        try:
            module, own_eos = _load(folder, _dtype(config, self.device), self.device)
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(
                f"engine 'torch' cannot load {folder} as a Hugging Face causal LM: {error}"
            ) from error
        self.module = module.to(self.device).requires_grad_(False).eval()
        if config.batch_invariant:
            make_batch_invariant(self.module, "engine 'torch'")
        self.recorder = RouterRecorder(self.module)
        self.images = ImageEncoder(folder, self.module) if reads_images(module.config) else None
        text = module.config.get_text_config(decoder=True)
        self.vocab = int(text.vocab_size)
        self.eos = _eos(own_eos, text.eos_token_id)
        self.cache_tokens = self._cache_tokens(config.cache_gb)
        self.context_length = min(_longest(text, config.context_length), self.cache_tokens)

    def _cache_tokens(self, gib: float) -> int:
        """Measured with a cache of one token, whatever the architecture keeps."""
        with torch.inference_mode():
            _, layers = self.prefill([np.zeros(1, dtype=np.int32)])
        per_token = sum(keys.nbytes + values.nbytes for keys, values in layers)
        tokens = max(1, int(gib * _GIB / per_token))
        return max(TILE, 1 << (tokens.bit_length() - 1))

    def prefill(
        self, prompts: Sequence[npt.NDArray[np.int32]], images: Sequence[Images] = ()
    ) -> tuple[torch.Tensor, list[Entries]]:
        """Logits ``[m, V]`` after each of ``m`` prompts, and each layer's keys and values of them all. ``images``: those of
        each prompt, or nothing if none has any.

        Padded on the right: causal attention keeps padding out of the real tokens without a mask, and the
        entries are left-aligned as the pool wants them; those beyond a prompt are overwritten later.
        """
        lengths = np.array([len(p) for p in prompts])
        ids = np.zeros((len(prompts), int(lengths.max())), dtype=np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        ends, which = np.unique(lengths - 1, return_inverse=True)
        cache = empty_cache(self.module)
        logits = self.module(
            **self._inputs(self.tensor(ids), images),
            position_ids=torch.arange(ids.shape[1], device=self.device)[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=self.tensor(ends),
        ).logits
        rows = torch.arange(len(prompts), device=self.device)
        entries = [(layer.keys, layer.values) for layer in cache.layers]
        return logits[rows, self.tensor(which)], entries

    def _inputs(self, ids: torch.Tensor, images: Sequence[Images]) -> dict[str, torch.Tensor]:
        """What the model is given for token ids ``[m, T]``, ``images`` for each row of them."""
        placed = [
            image.moved(row * ids.shape[1]) for row, some in enumerate(images) for image in some
        ]
        if not placed:
            return {"input_ids": ids}
        assert self.images is not None, "a request with images is checked before"
        return {"inputs_embeds": self.images.embed(ids, placed)}

    def decode(
        self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], pool: KVPool
    ) -> torch.Tensor:
        """Logits ``[n, V]`` after token i, at ``positions[i]`` of row i of ``pool``."""
        columns = -(-(int(positions.max()) + 1) // TILE) * TILE
        at = self.tensor(positions)
        pool.begin_step(at, columns)
        hidden = torch.arange(columns, device=self.device) > at[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.module.dtype, device=self.device)
        mask = mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)[:, None, None]
        logits: torch.Tensor = self.module(
            input_ids=self.tensor(tokens)[:, None],
            attention_mask=mask,
            position_ids=at[:, None],
            past_key_values=pool,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, 0]

    def score(self, tokens: npt.NDArray[np.int32], images: Images = ()) -> npt.NDArray[np.float32]:
        """Raw log-prob of each token given those before it: float32 ``[T]``, the first is 0.

        In chunks over a cache, so that the logits of a long sequence are never all in memory.
        """
        ids = self.tensor(tokens.astype(np.int64))
        (inputs,) = self._inputs(ids[None], [images]).items()
        scores = torch.zeros(len(ids), device=self.device)
        cache = empty_cache(self.module)
        for start in range(0, len(ids) - 1, _SCORE_CHUNK):
            end = min(start + _SCORE_CHUNK, len(ids) - 1)
            logits = self.module(
                **{inputs[0]: inputs[1][:, start:end]}, past_key_values=cache, use_cache=True
            ).logits[0]
            logprobs = logits.float().log_softmax(-1)
            following = ids[start + 1 : end + 1, None]
            scores[start + 1 : end + 1] = logprobs.gather(-1, following)[:, 0]
        result: npt.NDArray[np.float32] = scores.cpu().numpy()
        return result

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """``array`` on the model's device."""
        return torch.from_numpy(array).to(self.device)


def _load(folder: Path, dtype: Any, device: torch.device) -> tuple[Any, int | list[int] | None]:
    """The model on the CPU, and the ids that end a sequence by its generation config."""
    plain = Qwen3Config.read(folder) if device.type == "cpu" else None
    if plain is not None:
        return load_qwen3(plain, load_file(folder / WEIGHTS), dtype), plain.generation_eos
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # this is a service with a log, not a terminal
    config = AutoConfig.from_pretrained(folder)
    loader = AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM
    module: Any = loader.from_pretrained(folder, config=config, dtype=dtype)
    return module, module.generation_config.eos_token_id


def _dtype(config: TorchEngineConfig, device: torch.device) -> Any:
    if config.dtype == "auto":
        exact = device.type == "cpu" or config.batch_invariant
        return torch.float32 if exact else "auto"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]


def _eos(*candidates: int | list[int] | None) -> tuple[int, ...]:
    """The first that is given: of the generation config, else of the model's config."""
    for ids in candidates:
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (ids,)
    return ()


def _longest(text: Any, wanted: int | None) -> int:
    """The most positions; a sliding window bounds them, since the pool keeps whole sequences and within
    the window attention is the same."""
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None)
    foreign = kinds - {"full_attention", "sliding_attention"}
    if foreign:
        raise UserError(
            f"engine 'torch' serves attention over keys and values only; {text.model_type!r} has "
            f"{', '.join(sorted(foreign))} layers: choose another engine"
        )
    limits = [int(text.max_position_embeddings)]
    if window and ("sliding_attention" in kinds or not hasattr(text, "layer_types")):
        limits.append(int(window))
    if wanted is not None and wanted > min(limits):
        raise UserError(
            f"engine 'torch': context_length {wanted} is above the {min(limits)} of the model"
        )
    return min([*limits, *([] if wanted is None else [wanted])])
