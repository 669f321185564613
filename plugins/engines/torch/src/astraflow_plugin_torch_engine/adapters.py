"""LoRA adapters as versions: merged into their base weights, which are kept as a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from astraflow_core.errors import WeightsError
from astraflow_core.types import WeightSource
from astraflow_serving.adapter import AdapterShape, adapter_shape
from astraflow_serving.model_folder import ModelFolder
from astraflow_wire.model_files.model_digest import digest_of_model


class AdapterBase:
    """The whole version that is loaded, which adapters have to be for."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._folder: ModelFolder | None = None
        self._digest: str | None = None

    def replace(self, digest: str) -> None:
        """Another whole version is loaded."""
        self._digest = digest

    def check(self, source: WeightSource) -> AdapterShape:
        """Its rank and matrices; :class:`WeightsError` unless it fits the model, is for the version that is loaded, and has no
        greater rank than the largest of its matrices can have. Reads the model's folder the first time."""
        folder = self._folder = self._folder or ModelFolder.read(self._path)
        shape = adapter_shape(folder, source.path)
        most = max(min(folder.tensors[f"{module}.weight"].shape) for module in shape.modules)
        if not 1 <= shape.rank <= most:
            raise WeightsError(
                f"version {source.version} is an adapter of rank {shape.rank}; expected 1 to {most}, the rank that the matrices "
                "that it changes can have"
            )
        if self._digest is None:
            self._digest = digest_of_model(folder.files)
        self.check_digest(source.base, source.version)
        return shape

    def check_digest(self, base: str | None, version: int) -> None:
        """Raise :class:`WeightsError` unless ``base`` is what is loaded."""
        if base != self._digest:
            raise WeightsError(
                f"version {version} is an adapter for the base {base}; {self._digest} is loaded"
            )


class AdapterMerger:
    """Makes ``W + B A`` of the matrices that an adapter changes (Hu et al. 2021, arXiv:2106.09685; the scale is in
    ``B``), in float32, rounded to the model's dtype. Memory: a copy of each matrix that any adapter has changed
    since the last whole version."""

    def __init__(self, base: AdapterBase, model: Any) -> None:
        self._base, self._model = base, model
        self._bases: dict[str, torch.Tensor] = {}

    def check(self, base: str | None, version: int) -> None:
        """Raise :class:`WeightsError` unless the weights are those of ``base``, for an adapter kept next to them."""
        self._base.check_digest(base, version)
        if self._bases:
            raise WeightsError(
                f"version {version} is an adapter kept next to its base, and another one is merged into that base: load the whole version first"
            )

    def rebase(self, digest: str) -> None:
        """A whole version was loaded; adapters are for that one now."""
        self._base.replace(digest)
        self._bases.clear()

    def load(self, source: WeightSource) -> None:
        """Put ``source`` in the place of the adapter before. Raises :class:`WeightsError`, with nothing changed,
        unless it fits the model and is for the base that is loaded."""
        modules = self._base.check(source).modules
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
