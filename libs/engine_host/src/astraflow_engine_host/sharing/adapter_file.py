"""What a shared engine refuses before it loads an adapter: it would slow down the other runs, or is not what its sender announced."""

from __future__ import annotations

from pathlib import Path

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import TensorSpec
from astraflow_wire.model_files.model_digest import digest_of_model
from astraflow_wire.model_files.tensor_file import specs_of

MOST_RANK = 512
_DTYPES = frozenset({"F32", "F16", "BF16"})
_SIDES = {".lora_A.weight": 0, ".lora_B.weight": 1}
"""End of a tensor's name → which of its two dimensions is the rank."""


def check_adapter(file: Path, version: int, digest: str) -> None:
    """Raise :class:`WeightsError` unless every rank is within :data:`MOST_RANK`, every tensor of a floating type, and ``digest`` that of
    the tensors. The header is checked before any tensor is read."""
    try:
        for spec in specs_of(file):
            if problem := _problem(spec):
                raise WeightsError(f"version {version}: tensor {spec.name!r} {problem}")
        found = digest_of_model([file])
    except WireError as error:
        raise WeightsError(f"version {version}: {error}") from error
    if found != digest:
        raise WeightsError(f"version {version} has digest {found}; {digest} was announced")


def _problem(spec: TensorSpec) -> str:
    side = next((at for end, at in _SIDES.items() if spec.name.endswith(end)), None)
    if side is None or len(spec.shape) != 2:
        return "is not a factor of an adapter: a matrix lora_A.weight or lora_B.weight was expected"
    if spec.dtype not in _DTYPES:
        return f"has dtype {spec.dtype}; a shared engine takes {', '.join(sorted(_DTYPES))}"
    if not 1 <= (rank := spec.shape[side]) <= MOST_RANK:
        return f"has rank {rank}; a shared engine takes ranks from 1 to {MOST_RANK}"
    return ""
