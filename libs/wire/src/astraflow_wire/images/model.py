"""What a vision-language model makes of an image: how many tokens, and which one. Read without any framework."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROCESSOR = "preprocessor_config.json"
TYPE = "llava"
_TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Model types of vision towers → tokens that they have in addition to those of the patches."""
_FITS = (
    "images need a model of type 'llava' with a CLIP or SigLIP tower (LLaVA 1.5, or one that the library makes with "
    "LlavaConfig)"
)


@dataclass(frozen=True, slots=True)
class ImageModel:
    """Each image becomes ``length`` tokens with the id ``token``."""

    token: int
    length: int

    @classmethod
    def of(cls, folder: Path) -> ImageModel:
        """Of the model in a Hugging Face folder; :class:`ValueError` that says, as the end of a sentence about the model,
        why it reads no images here, and which models do."""
        try:
            config = json.loads((folder / "config.json").read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot be read: {error}") from error
        if not isinstance(config, dict) or config.get("model_type") != TYPE:
            kind = config.get("model_type") if isinstance(config, dict) else config
            raise ValueError(f"is of type {kind!r:.40}, which reads no images here; {_FITS}")
        if not (folder / PROCESSOR).is_file():
            raise ValueError(
                f"is a model without a processor: {folder} has no {PROCESSOR}; save that of the model there "
                "(AutoImageProcessor.from_pretrained(…).save_pretrained(…) of transformers writes one)"
            )
        token = config.get("image_token_index", config.get("image_token_id"))
        if type(token) is not int or token < 0:
            raise ValueError(f"has no image_token_index: config.json gives {token!r:.40}")
        return cls(token, _length(config))


def _length(config: dict[str, Any]) -> int:
    """Hidden states of the tower that become tokens: see ``LlavaModel.get_image_features`` of transformers."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict) or vision.get("model_type") not in _TOWERS:
        kind = vision.get("model_type") if isinstance(vision, dict) else vision
        raise ValueError(f"has a vision tower of type {kind!r:.40}; {_FITS}")
    size, patch = vision.get("image_size"), vision.get("patch_size")
    if type(size) is not int or type(patch) is not int or not 0 < patch <= size:
        raise ValueError(
            f"has a vision tower with image_size {size!r:.40} and patch_size {patch!r:.40}"
        )
    extra = _TOWERS[vision["model_type"]]
    dropped = 1 if config.get("vision_feature_select_strategy", "default") == "default" else 0
    return int(size // patch) ** 2 + extra - dropped
