"""LLaVA 1.5 and its like, behind the vision towers that SGLang 0.5.23 lacks.

SGLang's own class of this name looks for the tower (CLIP, SigLIP) in its registry, which has neither, and refuses weights at the
strategy ``default``. This one takes tower and projector from transformers, and the language model from SGLang.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sglang.srt.managers import mm_schedule
from sglang.srt.managers.mm_utils import general_mm_embed_routine, pad_mm_tokens
from sglang.srt.managers.schedule_batch import Modality
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.utils import add_prefix
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

_LANGUAGE, _TOWER = "language_model.", "vision_tower."
_IN_FILES = "vision_tower.vision_model."
"""Under which files have the tower, as transformers writes them; its modules have no ``vision_model``."""


class LlavaForConditionalGeneration(nn.Module):
    """Called as the architecture in ``config.json``, by which SGLang finds it before its own."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        text = config.text_config
        dtype = torch.get_default_dtype()
        self.vision_tower = AutoModel.from_config(config.vision_config, dtype=dtype)
        self.multi_modal_projector = LlavaMultiModalProjector(config)
        name = AutoModelForCausalLM._model_mapping[type(text)].__name__
        language, _ = ModelRegistry.resolve_model_cls(name)
        self.language_model = language(
            text, quant_config=quant_config, prefix=add_prefix("language_model", prefix)
        )

    def pad_input_ids(self, input_ids: array[int], image_inputs: Any) -> array[int]:
        """Placeholders become ids made of the image's digest, by which the prefix cache tells images apart."""
        return pad_mm_tokens(input_ids, image_inputs)  # type: ignore[no-any-return]

    def get_image_feature(self, items: list[Any]) -> torch.Tensor:
        """Embeddings ``[tokens, hidden]`` of the placeholders of all ``items``, as ``LlavaModel.get_image_features`` of
        transformers makes them."""
        weight = self.multi_modal_projector.linear_1.weight
        pixels = torch.cat([item.feature for item in items]).to(weight.device, weight.dtype)
        states = self.vision_tower(pixels, output_hidden_states=True).hidden_states
        layers = self.config.vision_feature_layer
        read = [states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
        if self.config.vision_feature_select_strategy == "default":
            read = [each[:, 1:] for each in read]
        return self.multi_modal_projector(torch.cat(read, -1)).flatten(0, 1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **more: Any
    ) -> Any:
        """As SGLang calls its models."""
        return general_mm_embed_routine(
            input_ids=input_ids,
            forward_batch=forward_batch,
            language_model=self.language_model,
            data_embedding_funcs={Modality.IMAGE: self.get_image_feature},
            positions=positions,
            **more,
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """All of a version, or a part. What the tower has made of images is forgotten: SGLang keeps that by the image."""
        if mm_schedule.embedding_cache is not None:
            mm_schedule.embedding_cache.clear()
        self.language_model.load_weights(self._load_others(weights))

    @torch.no_grad()
    def _load_others(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Load what is not of the language model, and yield the rest."""
        own = dict(self.named_parameters())
        for name, tensor in weights:
            if name.startswith(_LANGUAGE):
                yield name.removeprefix(_LANGUAGE), tensor
            else:
                own[name.replace(_IN_FILES, _TOWER, 1)].copy_(tensor)


EntryClass = LlavaForConditionalGeneration
