"""What an adapter must look like to fit a model, according to the model's folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.errors import WeightsError, WireError
from astraflow_serving.model_folder import ModelFolder, specs_of

_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """The rank of an adapter, the same for each of the ``modules`` that it changes."""

    rank: int
    modules: tuple[str, ...]


def adapter_shape(folder: ModelFolder, file: Path) -> AdapterShape:
    """Of an adapter as :class:`astraflow_core.types.Manifest` describes it. Raises :class:`WeightsError`
    unless it fits the model of ``folder``."""
    try:
        specs = specs_of(file)
    except (OSError, ValueError, WireError) as error:
        raise WeightsError(f"cannot read {file} as safetensors: {error}") from error
    sides: dict[str, dict[str, tuple[int, ...]]] = {}
    problems = []
    for spec in specs:
        match = _NAME.fullmatch(spec.name)
        if match is None or f"{match['module']}.weight" not in folder.tensors:
            problems.append(f"unknown tensor {spec.name!r}")
        else:
            sides.setdefault(match["module"], {})[match["side"]] = spec.shape
    ranks = {shapes["A"][0] for shapes in sides.values() if len(shapes.get("A", ())) == 2}
    if not problems and len(ranks) != 1:
        problems.append(f"it has ranks {sorted(ranks)}, expected one for all modules")
    for module, shapes in sides.items():
        wanted = folder.tensors[f"{module}.weight"].shape
        fits = (
            len(wanted) == 2
            and len(ranks) == 1
            and shapes == {"A": (*ranks, wanted[1]), "B": (wanted[0], *ranks)}
        )
        if not fits and not problems:
            problems.append(f"{module!r}, a weight of shape {wanted}, has lora_A and B {shapes}")
    if problems:
        raise WeightsError(
            f"{file} is not an adapter for the loaded model: {'; '.join(problems[:5])}"
        )
    return AdapterShape(min(ranks), tuple(sorted(sides)))
