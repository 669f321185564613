"""What a version of the weights has to look like, known from the files of the model's folder."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError, WeightsError, WireError
from astraflow_core.types import TensorSpec
from astraflow_wire.images.model import TYPE
from astraflow_wire.model_files.tensor_file import read_specs

_CASTABLE = frozenset({"F32", "BF16", "F16"})
_OUTPUT = "lm_head.weight"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What its configuration says of a causal language model. ``eos`` end a sequence by the model's own
    word, ``positions`` are the most tokens of a sequence, token ids are below ``vocabulary``; ``tied``: the
    output is the embedding, and need not be in a version."""

    vocabulary: int
    positions: int
    eos: tuple[int, ...]
    tied: bool

    @classmethod
    def read(cls, folder: Path) -> ModelConfig:
        """From ``config.json`` and ``generation_config.json``; raises :class:`UserError` if they are not
        those of such a model."""
        try:
            config = _object(folder / "config.json")
            text: dict[str, Any] = config.get("text_config", config)
            generation = folder / "generation_config.json"
            own = _object(generation) if generation.exists() else {}
            vocabulary = int(text["vocab_size"])
            _check_tokenizer(folder / "tokenizer.json", vocabulary)
            return cls(
                vocabulary,
                int(text["max_position_embeddings"]),
                _ids(own.get("eos_token_id", text.get("eos_token_id"))),
                bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"cannot read {folder} as a Hugging Face folder of a causal language model: "
                f"{type(error).__name__}: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A Hugging Face folder with safetensors: its configuration, and the tensors of a version."""

    path: Path
    files: tuple[Path, ...]
    tensors: dict[str, TensorSpec]
    config: ModelConfig

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """Read configuration and headers; raises :class:`UserError` if it is not a model folder."""
        config = ModelConfig.read(path)
        files = tuple(sorted(path.glob("*.safetensors")))
        try:
            if not files:
                raise FileNotFoundError(f"no *.safetensors in {path}")
            tensors = {spec.name: spec for file in files for spec in specs_of(file)}
        except (OSError, ValueError, WireError) as error:
            raise UserError(
                f"cannot read {path} as a Hugging Face folder with safetensors: "
                f"{type(error).__name__}: {error}"
            ) from error
        return cls(path, files, tensors, config)

    def check(self, files: Sequence[Path]) -> None:
        """Raise :class:`WeightsError` unless these files hold a version of this model: its tensors, each
        once, in its shape, as floats of any of the usual widths."""
        try:
            given = {spec.name: spec for file in files for spec in specs_of(file)}
        except (OSError, ValueError, WireError) as error:
            raise WeightsError(
                f"cannot read {', '.join(map(str, files))} as safetensors: {error}"
            ) from error
        self.check_specs(", ".join(map(str, files)), given)

    def check_specs(self, what: str, given: dict[str, TensorSpec]) -> None:
        """Raise :class:`WeightsError` unless these are the tensors of a version; ``what`` names it."""
        problems = list(self._problems(given))
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise WeightsError(
                f"{what} does not fit the loaded model: {'; '.join(problems[:_SHOWN])}{more}"
            )

    def _problems(self, given: dict[str, TensorSpec]) -> Iterator[str]:
        optional = {_OUTPUT} if self.config.tied else set()
        for name in sorted(given.keys() - self.tensors.keys() - optional):
            yield f"unknown tensor {name!r}"
        for name, wanted in self.tensors.items():
            spec = given.get(name)
            if spec is None:
                if name not in optional:
                    yield f"missing tensor {name!r}"
                continue
            if spec.shape != wanted.shape:
                yield f"{name!r} has shape {spec.shape}, expected {wanted.shape}"
            allowed = _CASTABLE if wanted.dtype in _CASTABLE else {wanted.dtype}
            if spec.dtype not in allowed:
                yield f"{name!r} is {spec.dtype}, expected {' or '.join(sorted(allowed))}"


def _check_tokenizer(file: Path, vocabulary: int) -> None:
    """A tokenizer may know fewer tokens than a model has rows for, never more."""
    if not file.exists():
        return
    tokenizer = _object(file)
    known = tokenizer.get("model", {}).get("vocab", ())
    ids = [*known.values()] if isinstance(known, dict) else [len(known) - 1]
    ids += [token["id"] for token in tokenizer.get("added_tokens", ())]
    if max(ids, default=0) >= vocabulary:
        raise UserError(
            f"{file} is not the tokenizer of this model: it has ids up to {max(ids)}, and the model a "
            f"vocabulary of {vocabulary}; put the matching tokenizer next to the weights"
        )


def _object(file: Path) -> dict[str, Any]:
    value = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return value


def specs_of(file: Path) -> tuple[TensorSpec, ...]:
    """The tensors of a safetensors file, read from its header; the file's length is checked too."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        view = memoryview(whole)
        try:
            return read_specs(view)
        finally:
            view.release()


def reads_images(folder: Path) -> bool:
    """Whether the model in ``folder`` is of a type that reads images; not if it cannot be read."""
    try:
        return _object(folder / "config.json").get("model_type") == TYPE
    except (OSError, ValueError):
        return False


def link_version(model: ModelFolder, files: Sequence[Path], folder: Path) -> None:
    """Fill ``folder`` with links that make it a folder like ``model``, with the weights of ``files``."""
    for file in model.path.iterdir():
        if not file.name.endswith((".safetensors", ".safetensors.index.json")):
            os.symlink(file.resolve(), folder / file.name)
    for number, file in enumerate(files):
        os.symlink(file.resolve(), folder / f"model-{number}.safetensors")


def chunks(file: Path, most_bytes: int) -> Iterator[list[str]]:
    """Names of tensors that lie together in ``file``, at least one and at most that many bytes at a time."""
    names: list[str] = []
    start = 0
    for spec in specs_of(file):
        if names and spec.end - start > most_bytes:
            yield names
            names = []
        if not names:
            start = spec.start
        names.append(spec.name)
    if names:
        yield names


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
