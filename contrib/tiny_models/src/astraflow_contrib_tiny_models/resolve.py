"""Reads a reference, makes the model once, finds it again by what it is made from."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import xxhash

from astraflow_core.errors import PreflightError
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_tiny_model.vision import write_tiny_vision_model

_FORMAT = 1
"""Counts changes of what the writers write for the same arguments."""
_WRITERS: dict[str, Callable[..., Path]] = {
    "qwen3": write_tiny_model,
    "llava": write_tiny_vision_model,
}
"""Architecture → who writes a model of it."""
_WORDS = ("alphabet", "pad", "eos", "dtype")
_NUMBERS = (
    "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "context", "seed", "experts", "top_k",
)  # fmt: skip
_OF_IMAGES = ("image_size", "patch_size", "vision_hidden", "vision_layers")
_SYNTAX = "expected tiny:qwen3?hidden=128&layers=2&…"


def resolve(reference: str, seed: int, cache: Path) -> Path:
    """The folder of the model that ``reference`` describes, made if ``cache`` does not hold it yet.

    ``seed`` is used unless the reference names one. Raises :class:`PreflightError` for a malformed
    reference or sizes that do not fit.
    """
    architecture, given = parse(reference)
    arguments = {"seed": seed} | given
    key = json.dumps([_FORMAT, architecture, arguments], sort_keys=True)
    folder = cache / "tiny" / xxhash.xxh3_128_hexdigest(key.encode())
    if (folder / "config.json").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    except OSError as error:
        raise PreflightError(
            f"model {reference!r}: cannot write to the cache {cache}: {error.strerror}"
        ) from error
    try:
        _WRITERS[architecture](made, **arguments)
        made.chmod(0o755)
        os.rename(made, folder)
    except ValueError as error:
        raise PreflightError(f"model {reference!r}: {error}") from error
    except OSError as error:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise PreflightError(
                f"model {reference!r}: cannot be written to {folder}: {error.strerror}"
            ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def parse(reference: str) -> tuple[str, dict[str, Any]]:
    """The architecture, and the arguments of its writer that the reference names."""
    address = urlsplit(reference)
    if address.path not in _WRITERS or address.netloc or address.fragment:
        raise PreflightError(
            f"model {reference!r}: unknown architecture {address.path!r}; {_SYNTAX}"
        )
    arguments: dict[str, Any] = {}
    try:
        pairs = parse_qsl(address.query, keep_blank_values=True, strict_parsing=bool(address.query))
        for name, value in pairs:
            if name in arguments:
                raise ValueError(f"{name} is given twice")
            arguments[name] = _value(name, value, address.path == "llava")
    except ValueError as error:
        raise PreflightError(f"model {reference!r}: {error}; {_SYNTAX}") from error
    return address.path, arguments


def _value(name: str, value: str, images: bool) -> Any:
    words = (*_WORDS, "image") if images else _WORDS
    numbers = (*_NUMBERS, *_OF_IMAGES) if images else _NUMBERS
    if name in words:
        return value
    if name == "init_std":
        return float(value)
    if name == "tie":
        if value not in ("true", "false"):
            raise ValueError(f"tie={value!r}: expected true or false")
        return value == "true"
    if name not in numbers:
        known = ", ".join((*numbers, *words, "init_std", "tie"))
        raise ValueError(f"unknown key {name!r}; known: {known}")
    if not value.isascii() or not value.isdecimal() or (int(value) < 1 and name != "seed"):
        raise ValueError(f"{name}={value!r}: expected a positive integer")
    return int(value)
