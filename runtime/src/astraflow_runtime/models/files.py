"""Checks that the files of a Hugging Face folder are complete, from JSON and headers alone: no
framework is imported and no weights are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from astraflow_core.errors import PreflightError, WireError
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.images.model import ImageModel

_POSITIVE = ("vocab_size", "hidden_size", "num_hidden_layers")
_INTEGERS = (*_POSITIVE, "max_position_embeddings")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_SILU = ("silu", "swish")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_ROUTER = ".gate.weight"
"""Of a router, in the names of checkpoints: a row for each expert."""
_INDEX = "model.safetensors.index.json"
_LFS = b"version https://git-lfs"
_AGAIN = "download the model again"
_SHOWN = 3


def check_config(folder: Path, who: str) -> dict[str, Any]:
    """``config.json`` of a folder. Raises :class:`PreflightError` with file and position if it is
    not a JSON object, or with the key if one of its sizes is not a whole number. ``who``: the owner
    of the model, for the error.
    """
    file = folder / "config.json"
    config = _object(file, who)
    inner = config.get("text_config")
    if inner is not None and not isinstance(inner, dict):
        raise PreflightError(f"{who}: {file}: text_config is {inner!r:.80}, expected an object")
    for table in (config, inner or {}):
        for key in _INTEGERS:
            value = table.get(key)
            if value is None:
                continue
            if type(value) is not int or (key in _POSITIVE and value < 1):
                kind = "a positive integer" if key in _POSITIVE else "an integer"
                raise PreflightError(f"{who}: {file}: {key} is {value!r:.80}, expected {kind}")
    return config


def check_files(folder: Path, who: str, *, weights: bool) -> None:
    """Raise :class:`PreflightError`, in one line with the file, unless the folder has what a run
    reads: its configuration, a ``tokenizer.json`` and complete ``*.safetensors``, all that an index
    names. ``weights=False`` allows a folder without them, as for a model that an endpoint serves.
    """
    config = check_config(folder, who)
    _check_tokenizer(folder, who)
    for problem in chain(_of_weights(folder, who, weights), _of_experts(folder, config)):
        raise PreflightError(f"{who}: {problem}")


def check_context(policy: str, folder: Path, max_tokens: int) -> None:
    """Raise :class:`PreflightError` if ``max_tokens`` are all that the context of the model in ``folder`` has."""
    config = check_config(folder, f"policies.{policy}.model")
    context = (config.get("text_config") or config).get("max_position_embeddings")
    if isinstance(context, int) and max_tokens >= context:
        raise PreflightError(
            f"sampling.max_tokens: {max_tokens} leaves no room for a prompt in the context of policy {policy!r}, {context} "
            "tokens; lower it"
        )


def check_experts(policy: str, model: str, folder: Path) -> ExpertLayers:
    """The experts that ``router_replay`` of a policy records. Raises :class:`PreflightError` if its ``model``, which is
    in ``folder``, has none, or its routers are not known."""
    try:
        return ExpertLayers.of(folder)
    except ValueError as error:
        raise PreflightError(
            f"policies.{policy}.router_replay: the model {model} {error}; leave the key out"
        ) from error


def check_images(policy: str, model: str, folder: Path) -> ImageModel:
    """How the ``model`` of a policy, which is in ``folder``, reads images. Raises :class:`PreflightError` that says what
    would fit if it reads none, or has no processor."""
    try:
        return ImageModel.of(folder)
    except ValueError as error:
        raise PreflightError(
            f"policies.{policy}.images: the model {model} {error}; else leave the key out"
        ) from error


def check_exact(policy: str, model: str, folder: Path) -> None:
    """Raise :class:`PreflightError` if the config of the ``model`` of a policy, which is in ``folder``, says that
    ``batch_invariant`` does not support it. What only its layers show is refused when they are built."""
    config = check_config(folder, f"policies.{policy}.model")
    inner = config.get("text_config") or config
    act = next((str(inner[key]) for key in _ACTIVATIONS if inner.get(key)), _SILU[0])
    kinds = {str(kind) for kind in inner.get("layer_types") or ()} - {"full_attention"}
    window = "layer_types" not in inner and "use_sliding_window" not in inner
    reasons = {
        f"has the activation {act!r}, not {_SILU[0]!r}": act not in _SILU,
        f"has layers of {', '.join(sorted(kinds))}": bool(kinds),
        "has attention in a sliding window": window and bool(inner.get("sliding_window")),
        "has experts": any((inner.get(key) or 0) > 1 for key in _EXPERTS),
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise PreflightError(
            f"policies.{policy}.engine.batch_invariant: the model {model} {reason}; leave batch_invariant out of engine and "
            "trainer, or use a dense model of the Llama or Qwen3 kind"
        )


def _check_tokenizer(folder: Path, who: str) -> None:
    if not (folder / "tokenizer.json").is_file():
        raise PreflightError(
            f"{who}: {folder} has no tokenizer.json, which the RaaS needs; save the tokenizer of the model there "
            "(AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers writes one)"
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            _object(folder / name, who)


def _of_weights(folder: Path, who: str, needed: bool) -> Iterator[str]:
    files = sorted(folder.glob("*.safetensors"))
    if not files and needed:
        yield _without_weights(folder)
    tensors: dict[str, set[str]] = {}
    for file in files:
        try:
            tensors[file.name] = _tensors(file)
        except (OSError, ValueError, WireError) as error:
            pointer = _is_pointer(file)
            why = "it is a pointer of Git LFS" if pointer else str(error)
            remedy = "`git lfs pull` in it, or " if pointer else ""
            yield f"{file} is not a complete safetensors file: {why}; {remedy}{_AGAIN}"
    if (folder / _INDEX).exists():
        yield from _of_index(_object(folder / _INDEX, who), folder / _INDEX, tensors, needed)


def _of_index(
    said: dict[str, Any], index: Path, tensors: dict[str, set[str]], needed: bool
) -> Iterator[str]:
    places = said.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        yield f"{index}: weight_map is not an object of tensor → file"
        return
    shards = sorted(set(places.values()))
    gone = [name for name in shards if name not in tensors]
    if gone and (needed or tensors):
        more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
        yield (
            f"{index.parent} lacks {', '.join(gone[:_SHOWN])}{more} of the {len(shards)} files that {index.name} names; "
            f"{_AGAIN}"
        )
    for tensor, name in places.items():
        if name in tensors and tensor not in tensors[name]:
            yield f"{index} says that {tensor!r} is in {name}, which does not contain it; {_AGAIN}"


def _of_experts(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    inner = config.get("text_config") or config
    key = next((key for key in _EXPERTS if inner.get(key)), None)
    if key is None:
        return
    from astraflow_wire.model_files.tensor_file import specs_of

    for file in sorted(folder.glob("*.safetensors")):
        for spec in specs_of(file):
            if spec.name.endswith(_ROUTER) and spec.shape[:1] != (inner[key],):
                yield (
                    f"{file}: {spec.name} chooses among {spec.shape[0]} experts, and config.json has {key} = {inner[key]}; take "
                    "both from the same checkpoint"
                )


def _without_weights(folder: Path) -> str:
    if any(folder.glob("*.bin")):
        return (
            f"{folder} has weights only in *.bin, which are pickles and are not loaded; if you trust them, convert "
            "them to safetensors as safetensors: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) of "
            "transformers"
        )
    return f"{folder} has no *.safetensors, so there are no weights to start from; {_AGAIN}"


def _tensors(file: Path) -> set[str]:
    from astraflow_wire.model_files.tensor_file import specs_of

    if not file.stat().st_size:
        raise ValueError("it is empty")
    return {spec.name for spec in specs_of(file)}


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_LFS)) == _LFS


def _object(file: Path, who: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes().decode("utf-8"))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise PreflightError(
            f"{who}: {file}: {place}: it is not valid JSON ({error.msg}); {_AGAIN}"
        ) from error
    except UnicodeDecodeError as error:
        raise PreflightError(
            f"{who}: {file}: it is not UTF-8 text (byte {error.start}); {_AGAIN}"
        ) from error
    except RecursionError as error:
        raise PreflightError(f"{who}: {file}: its JSON is nested too deeply; {_AGAIN}") from error
    except OSError as error:
        raise PreflightError(f"{who}: {file} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise PreflightError(
            f"{who}: {file}: holds {type(value).__name__}, expected a JSON object; {_AGAIN}"
        )
    return value
