"""LoRA adapters as versions: merged into the weights that they are for, which are kept beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from astraflow_core.errors import WeightsError
from astraflow_core.types import WeightSource
from astraflow_serving.adapter import adapter_shape
from astraflow_serving.model_folder import ModelFolder
from astraflow_wire.model_files.model_digest import digest_of_model


class AdapterMerger:
    """Makes ``W + B A`` of the matrices that an adapter changes (Hu et al. 2021, arXiv:2106.09685; the scale is in
    ``B``), in float32, rounded to the model's dtype. Memory: a copy of each matrix that any adapter has changed
    since the last whole version."""

    def __init__(self, folder: Path, model: Any) -> None:
        self._path, self._model = folder, model
        self._folder: ModelFolder | None = None
        self._digest: str | None = None
        self._bases: dict[str, torch.Tensor] = {}

    def rebase(self, digest: str) -> None:
        """A whole version was loaded; adapters are for that one now."""
        self._digest = digest
        self._bases.clear()

    def load(self, source: WeightSource) -> None:
        """Put ``source`` in the place of the adapter before. Raises :class:`WeightsError`, with nothing changed,
        unless it fits the model and is for the base that is loaded."""
        folder = self._folder = self._folder or ModelFolder.read(self._path)
        modules = adapter_shape(folder, source.path).modules
        if self._digest is None:
            self._digest = digest_of_model(folder.files)
        if source.base != self._digest:
            raise WeightsError(
                f"version {source.version} is an adapter for the base {source.base}; {self._digest} is loaded"
            )
        targets = self._model.state_dict(keep_vars=True)
        factors = load_file(source.path)
        with torch.no_grad():
            for name in self._bases.keys() - {f"{module}.weight" for module in modules}:
                targets[name].copy_(self._bases[name])
            for module in modules:
                target = targets[f"{module}.weight"]
                base = self._bases.setdefault(f"{module}.weight", target.detach().clone())
                a, b = (
                    factors[f"base_model.model.{module}.lora_{side}.weight"].to(
                        target.device, torch.float32
                    )
                    for side in "AB"
                )
                target.copy_(torch.addmm(base.float(), b, a))
