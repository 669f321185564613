"""The digest of a model that was never published: an adapter names its base by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import xxhash

from astraflow_core.errors import WireError
from astraflow_core.types import TensorSpec
from astraflow_wire.model_files.tensor_file import lay_out, mapped, specs_of

BLOCK_SIZE = 2 << 20


def digest_of_model(files: Sequence[Path]) -> str:
    """The digest that the manifest of a version with the tensors of these safetensors ``files`` would have.

    It is that of the tensors, not of the files: the same however a folder is cut into files, in whatever
    order, with whatever metadata; and a trainer that publishes the tensors as they are gets the same one.
    Reads every byte once. Raises :class:`WireError` for what is not a safetensors file, or a tensor twice.
    """
    places: dict[str, tuple[Path, TensorSpec]] = {}
    for file in files:
        for spec in specs_of(file):
            if spec.name in places:
                raise WireError(f"tensor {spec.name!r} is in {places[spec.name][0]} and in {file}")
            places[spec.name] = file, spec
    header, order = lay_out((spec.name, spec.dtype, spec.shape) for _, spec in places.values())
    digest = _Blocks()
    digest.update(memoryview(header))
    for wanted in order:
        file, spec = places[wanted.name]
        with mapped(file) as view, view[spec.start : spec.end] as data:
            digest.update(data)
    return digest.finish()


class _Blocks:
    """xxh3-128 over the xxh3-128 digests of blocks, of bytes that come in pieces."""

    def __init__(self) -> None:
        self._whole, self._block, self._room = xxhash.xxh3_128(), xxhash.xxh3_128(), BLOCK_SIZE

    def update(self, data: memoryview) -> None:
        position = 0
        while position < len(data):
            with data[position : position + self._room] as piece:
                self._block.update(piece)
                position += len(piece)
                self._room -= len(piece)
            if not self._room:
                self._end_block()

    def finish(self) -> str:
        if self._room < BLOCK_SIZE:
            self._end_block()
        return self._whole.hexdigest()

    def _end_block(self) -> None:
        self._whole.update(self._block.digest())
        self._block, self._room = xxhash.xxh3_128(), BLOCK_SIZE
