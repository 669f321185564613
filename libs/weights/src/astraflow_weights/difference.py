"""How two versions of the same tensors differ: which share of the weights, and what the change must cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import TensorSpec
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_wire.model_files.tensor_file import read_specs

CHUNK = 4 << 20
"""Elements compared at a time."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_LAYER = re.compile(r"^(.*?\.\d+)\.")
_FAR = 1 << 15
"""Steps beyond this count as one kind: their code is a raw value anyway."""


@dataclass(slots=True)
class Difference:
    """Of one layer or of all: ``elements`` and ``changed`` count weights; ``steps`` counts by how many units
    in the last place those that have changed did."""

    elements: int = 0
    changed: int = 0
    steps: Counter[int] = field(default_factory=Counter)

    @property
    def density(self) -> float:
        """The share of the weights that have changed."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def bytes_per_changed(self) -> float:
        """Entropy of the places (as if each weight changed independently) and of the steps, in bytes for
        each that has changed: what a code without context cannot go below."""
        if not self.changed:
            return 0.0
        p = self.density
        places = -(math.log2(p) + ((1 - p) / p * math.log2(1 - p) if p < 1 else 0.0))
        counts = np.array(list(self.steps.values()), dtype=np.float64) / self.changed
        return (places - float((counts * np.log2(counts)).sum())) / 8

    def add(self, other: Difference) -> None:
        """Count ``other`` too."""
        self.elements += other.elements
        self.changed += other.changed
        self.steps.update(other.steps)


def differences(before: list[Path], after: list[Path]) -> dict[str, Difference]:
    """Difference by layer, in order of the names, of the tensors in two sets of safetensors files.

    A layer is a name up to its first number; a tensor without one stands for itself. Raises
    :class:`WeightsError` if the sets differ in names, shapes or dtypes, or if a file is damaged.
    """
    old, new = _tensor_locations(before), _tensor_locations(after)
    if only := sorted(old.keys() ^ new.keys()):
        raise WeightsError(
            f"they have different tensors: {', '.join(only[:3])} is in one of them only"
        )
    layers: dict[str, Difference] = {}
    for name in sorted(new):
        (old_file, old_spec), (new_file, new_spec) = old[name], new[name]
        shapes = [(spec.dtype, spec.shape) for spec in (old_spec, new_spec)]
        if shapes[0] != shapes[1]:
            raise WeightsError(
                f"tensor {name!r} is {shapes[0]} in one and {shapes[1]} in the other"
            )
        layer = match[1] if (match := _LAYER.match(name)) else name
        total = layers.setdefault(layer, Difference())
        a, b = _words(old_file, old_spec), _words(new_file, new_spec)
        for at in range(0, len(a), CHUNK):
            total.add(_compare(a[at : at + CHUNK], b[at : at + CHUNK]))
    return layers


def _compare(a: npt.NDArray[np.unsignedinteger], b: npt.NDArray[np.unsignedinteger]) -> Difference:
    where = np.flatnonzero(a != b)
    steps = b[where].astype(np.int64) - a[where].astype(np.int64)
    values, counts = np.unique(np.clip(steps, -_FAR, _FAR), return_counts=True)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return Difference(len(a), len(where), Counter(found))


def _tensor_locations(files: list[Path]) -> dict[str, tuple[Path, TensorSpec]]:
    places: dict[str, tuple[Path, TensorSpec]] = {}
    for file in files:
        try:
            whole = np.memmap(file, np.uint8, mode="r")
            places |= {spec.name: (file, spec) for spec in read_specs(whole.data)}
        except (OSError, ValueError, WireError) as error:
            raise WeightsError(f"{file} is not a safetensors file: {error}") from error
    return places


def _words(file: Path, spec: TensorSpec) -> npt.NDArray[np.unsignedinteger]:
    if spec.end == spec.start:
        return np.empty(0, np.uint8)
    data = np.memmap(file, np.uint8, "r", spec.start, (spec.end - spec.start,))
    return data.view(_WORDS[DTYPE_BYTES[spec.dtype]])
