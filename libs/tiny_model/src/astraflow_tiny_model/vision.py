"""A small, randomly initialised LLaVA model: the language model of :mod:`astraflow_tiny_model.folder` behind a CLIP tower."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_tiny_model.folder import (
    ALPHABET,
    language_tensors,
    write_json,
    write_tiny_model,
    write_weights,
)

IMAGE = "@"
CHAT_TEMPLATE = (
    "{{% for message in messages %}}{{% if message['content'] is string %}}{{{{ message['content'] }}}}"
    "{{% else %}}{{% for part in message['content'] %}}"
    "{{% if part['type'] == 'image' %}}{image}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}"
    "{{% if message['role'] == 'assistant' %}}{{{{ eos_token }}}}{{% endif %}}{{% endfor %}}"
)
"""As that of the language model; an image becomes its placeholder."""

_Tensors = Iterator[tuple[str, npt.NDArray[np.float32]]]


def write_tiny_vision_model(
    directory: Path | str,
    *,
    alphabet: str = ALPHABET + IMAGE,
    image: str = IMAGE,
    image_size: int = 8,
    patch_size: int = 4,
    vision_hidden: int = 32,
    vision_layers: int = 2,
    seed: int = 0,
    dtype: str = "F32",
    **language: Any,
) -> Path:
    """Write a LLaVA model with its processor into ``directory`` and return its path.

    ``image`` is the character of ``alphabet`` that stands for an image, which becomes (``image_size`` / ``patch_size``)²
    tokens; an image is scaled to ``image_size`` pixels on each side. The tower has ``vision_layers`` of size
    ``vision_hidden`` and two heads; its last layer but one is read, as in LLaVA 1.5. ``language``: keys of
    :func:`~astraflow_tiny_model.folder.write_tiny_model`. Raises :class:`ValueError` for sizes or characters that do not
    fit.
    """
    if len(image) != 1 or image not in alphabet:
        raise ValueError(f"image={image!r} is not one character of alphabet {alphabet!r}")
    if image_size % patch_size:
        raise ValueError(f"image_size={image_size} is not a multiple of patch_size={patch_size}")
    if vision_hidden % 2 or vision_layers < 2:
        raise ValueError(
            f"vision_hidden={vision_hidden} and vision_layers={vision_layers}: expected an even number and at least 2"
        )
    folder = write_tiny_model(directory, alphabet=alphabet, seed=seed, dtype=dtype, **language)
    text = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if text["model_type"] != "qwen3":
        raise ValueError("a tiny model with images has no experts")
    tower = _tower(image_size, patch_size, vision_hidden, vision_layers)
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_seq_length": (image_size // patch_size) ** 2,
        "image_token_index": alphabet.index(image),
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "torch_dtype": text["torch_dtype"],
        "vision_config": tower,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    write_json(folder / "config.json", config)
    write_json(folder / "preprocessor_config.json", _processor(image_size))
    write_json(
        folder / "processor_config.json",
        {
            "image_token": image,
            "num_additional_image_tokens": 1,
            "patch_size": patch_size,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        },
    )
    _teach_placeholder(folder, alphabet.index(image), image)
    write_weights(folder / "model.safetensors", _tensors(text, tower, seed), dtype)
    return folder


def _tower(image_size: int, patch_size: int, hidden: int, layers: int) -> dict[str, Any]:
    return {
        "model_type": "clip_vision_model",
        "attention_dropout": 0.0,
        "hidden_act": "quick_gelu",
        "hidden_size": hidden,
        "image_size": image_size,
        "intermediate_size": 2 * hidden,
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": layers,
        "patch_size": patch_size,
    }


def _processor(size: int) -> dict[str, Any]:
    side = {"height": size, "width": size}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "crop_size": side,
        "do_center_crop": False,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": side,
    }


def _teach_placeholder(folder: Path, token: int, image: str) -> None:
    """Make the placeholder a special token, which only the template may write."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (end,) = tokenizer["added_tokens"]
    tokenizer["added_tokens"] = sorted(
        [end, {**end, "id": token, "content": image}], key=lambda each: int(each["id"])
    )
    write_json(folder / "tokenizer.json", tokenizer)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = CHAT_TEMPLATE.format(image=image)
    write_json(folder / "tokenizer_config.json", config)


def _tensors(text: dict[str, Any], tower: dict[str, Any], seed: int) -> _Tensors:
    for name, values in language_tensors(text, seed):
        yield f"language_model.{name}", values
    generator = np.random.default_rng([seed, 1])
    hidden, ffn = tower["hidden_size"], tower["intermediate_size"]
    patch = (tower["num_channels"], tower["patch_size"], tower["patch_size"])
    places = (tower["image_size"] // tower["patch_size"]) ** 2 + 1

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        values = generator.standard_normal(shape, dtype=np.float32)
        return values / np.float32(np.sqrt(np.prod(shape[1:])))

    def linear(name: str, rows: int, columns: int) -> _Tensors:
        yield f"{name}.weight", normal(rows, columns)
        yield f"{name}.bias", np.zeros(rows, np.float32)

    def norm(name: str) -> _Tensors:
        yield f"{name}.weight", np.ones(hidden, np.float32)
        yield f"{name}.bias", np.zeros(hidden, np.float32)

    root = "vision_tower.vision_model"
    yield f"{root}.embeddings.class_embedding", normal(1, hidden)[0]
    yield f"{root}.embeddings.patch_embedding.weight", normal(hidden, *patch)
    yield f"{root}.embeddings.position_embedding.weight", normal(places, hidden)
    yield from norm(f"{root}.pre_layrnorm")
    for index in range(tower["num_hidden_layers"]):
        layer = f"{root}.encoder.layers.{index}"
        yield from norm(f"{layer}.layer_norm1")
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{layer}.self_attn.{part}", hidden, hidden)
        yield from norm(f"{layer}.layer_norm2")
        yield from linear(f"{layer}.mlp.fc1", ffn, hidden)
        yield from linear(f"{layer}.mlp.fc2", hidden, ffn)
    yield from norm(f"{root}.post_layernorm")
    yield from linear("multi_modal_projector.linear_1", text["hidden_size"], hidden)
    yield from linear("multi_modal_projector.linear_2", text["hidden_size"], text["hidden_size"])
