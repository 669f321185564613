"""The forward pass of the tiny LLaVA model in float64 NumPy, the reference for engines and trainers.

LLaVA 1.5 (Liu et al. 2023) behind a CLIP tower (Radford et al. 2021), as in transformers: the hidden states of the last
layer but one, without that of the class token, go through two linear layers and replace the embeddings of placeholders.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from astraflow_core.types import Images
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.qwen3 import Floats, Ids

_LANGUAGE = "language_model."
_erf = np.frompyfunc(math.erf, 1, 1)


def logits(folder: Path, file: Path, ids: Ids, images: Images) -> Floats:
    """Logits float64 ``[N, V]`` after each of the tokens ``ids``, with the weights of the safetensors ``file``; those of
    ``images`` that are whole among the tokens stand at their places."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = qwen3.load_floats(file)
    text = {
        name.removeprefix(_LANGUAGE): value
        for name, value in weights.items()
        if name.startswith(_LANGUAGE)
    }
    inputs = text["model.embed_tokens.weight"][ids]
    for image in images:
        if image.end <= len(ids):
            seen = _pixels(folder, bytes(image.data))
            inputs[image.start : image.end] = _features(config, weights, seen)
    return qwen3.embedded_logits(config["text_config"], text, inputs, {}, qwen3.ExpertChoice())


def _pixels(folder: Path, data: bytes) -> Floats:
    """Those of an image file ``[height, width, 3]``, scaled and normalised as ``preprocessor_config.json`` says."""
    said = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    size = said["size"]["width"], said["size"]["height"]
    scaled = Image.open(io.BytesIO(data)).convert("RGB").resize(size, said["resample"])
    values = np.asarray(scaled, dtype=np.float64) * said["rescale_factor"]
    return np.asarray((values - said["image_mean"]) / said["image_std"])


def _features(config: dict[str, Any], weights: Mapping[str, Floats], pixels: Floats) -> Floats:
    """Embeddings ``[length, hidden]`` of the tokens of one image."""
    vision, root = config["vision_config"], "vision_tower.vision_model"
    side, hidden = vision["patch_size"], vision["hidden_size"]

    def norm(x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + vision["layer_norm_eps"])
        return np.asarray(centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    def linear(x: Floats, name: str) -> Floats:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    rows = pixels.shape[0] // side
    patches = pixels.reshape(rows, side, rows, side, 3).transpose(0, 2, 4, 1, 3)
    kernel = weights[f"{root}.embeddings.patch_embedding.weight"].reshape(hidden, -1)
    x = np.concatenate(
        [
            weights[f"{root}.embeddings.class_embedding"][None],
            patches.reshape(rows * rows, -1) @ kernel.T,
        ]
    )
    x = norm(x + weights[f"{root}.embeddings.position_embedding.weight"], f"{root}.pre_layrnorm")
    layers: int = vision["num_hidden_layers"] + 1 + config["vision_feature_layer"]
    for number in range(layers):
        layer = f"{root}.encoder.layers.{number}"
        h = norm(x, f"{layer}.layer_norm1")
        heads = [
            linear(h, f"{layer}.self_attn.{part}_proj")
            .reshape(len(x), vision["num_attention_heads"], -1)
            .swapaxes(0, 1)
            for part in ("q", "k", "v")
        ]
        x = x + linear(_attend(*heads), f"{layer}.self_attn.out_proj")
        h = linear(norm(x, f"{layer}.layer_norm2"), f"{layer}.mlp.fc1")
        x = x + linear(h / (1 + np.exp(-1.702 * h)), f"{layer}.mlp.fc2")
    h = linear(x[1:], "multi_modal_projector.linear_1")
    gelu = h * (1 + np.asarray(_erf(h / math.sqrt(2)), np.float64)) / 2
    return linear(gelu, "multi_modal_projector.linear_2")


def _attend(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Attention of all patches to all, ``[heads, n, d]`` each: ``[n, heads · d]``."""
    scores = queries @ keys.swapaxes(1, 2) / math.sqrt(queries.shape[-1])
    shares = np.exp(qwen3.log_softmax(scores))
    return np.asarray((shares @ values).swapaxes(0, 1).reshape(queries.shape[1], -1))
