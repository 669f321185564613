"""Limits from the configuration of a language model, read without any framework."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.images.model import ImageModel

log = logging.getLogger(__name__)

MOST = 2**31
"""Token ids are int32: a bound that nothing exceeds."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Token ids are below ``vocabulary``; a sequence has at most ``positions`` tokens. ``experts``: whose choices are
    recorded; ``None``: none are. ``images``: how it reads images; ``None``: it gets none."""

    vocabulary: int = MOST
    positions: int = MOST
    experts: ExpertLayers | None = None
    images: ImageModel | None = None

    @classmethod
    def of(cls, folder: Path) -> ModelLimits:
        """From ``config.json`` of a Hugging Face folder. A missing number is no limit, and neither
        is a folder that cannot be read here: other processes check it too.
        """
        try:
            described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            log.warning("the limits of the model in %s are unknown: %s", folder, error)
            return cls()
        if not isinstance(described, dict):
            return cls()
        inner = described.get("text_config")
        text = inner if isinstance(inner, dict) else described
        return cls(_number(text.get("vocab_size")), _positions(text))


def _positions(text: dict[str, Any]) -> int:
    """The most positions: of the longer of those that the model was made for and those to which a scaling of its
    rotary positions stretches them."""
    own = _number(text.get("max_position_embeddings", text.get("n_positions")))
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(scaling, dict):
        return own
    original = _number(scaling.get("original_max_position_embeddings", own))
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or not 1 < factor < MOST:
        return own
    return min(MOST, max(own, int(original * factor)))


def _number(value: Any) -> int:
    return min(value, MOST) if type(value) is int and value > 0 else MOST
