"""What a process that forks engines and trainers imports for them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from astraflow_torch_weights.qwen3_config import Qwen3Config

_GPUS = ("nvidia[0-9]*", "kfd")
_DEVICES = Path("/dev")


def preload(model: Path) -> None:
    """Import the classes of a Hugging Face model in a folder, and nothing else: no thread, no operation of torch, no device. Not
    transformers, if the model runs without it.

    Raises :class:`OSError`, :class:`ValueError`, :class:`KeyError` or :class:`ImportError` if the folder or its kind of model is not known.
    """
    gpu = any(next(_DEVICES.glob(name), None) for name in _GPUS)
    if not gpu and Qwen3Config.read(model) is not None:
        return
    kind = json.loads((model / "config.json").read_text(encoding="utf-8"))["model_type"]
    importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    importlib.import_module("transformers.generation.utils")
