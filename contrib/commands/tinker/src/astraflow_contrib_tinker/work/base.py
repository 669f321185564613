"""The model that is served, and what trains and samples it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.protocols.engine import Engine, ServesAdapters
from astraflow_core.protocols.trainer import Trainer
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_serving.model_folder import ModelConfig, ModelFolder
from astraflow_wire.model_files.model_digest import digest_of_model


@dataclass(frozen=True)
class BaseModel:
    """``name`` is that for clients, ``folder`` a Hugging Face folder; ``trainer`` and ``engine`` are names and keys of
    components. ``scratch`` is a folder that ends with the server."""

    name: str
    folder: Path
    config: ModelConfig
    catalog: Catalog
    trainer: tuple[str, Mapping[str, Any]]
    engine: tuple[str, Mapping[str, Any]]
    scratch: Path
    seed: int

    def build_trainer(self, lora_rank: int, seed: int) -> Trainer:
        """A trainer of this model, set up."""
        use, keys = self.trainer
        given = {**keys, "lora_rank": lora_rank} if "lora" in self.trainer_flags else dict(keys)
        selected, config = self.catalog.validate_options(Kind.TRAINER, use, given, "trainer")
        trainer: Trainer = selected.build(config, self.context("trainer", seed))
        trainer.setup(self.folder, 1, frozenset())
        return trainer

    def build_engine(self) -> Engine:
        """An engine, to be started."""
        use, keys = self.engine
        selected, config = self.catalog.validate_options(Kind.ENGINE, use, keys, "engine")
        engine: Engine = selected.build(config, self.context("engine", self.seed))
        return engine

    def context(self, role: str, seed: int) -> ComponentContext:
        """The context of components."""
        run = RunInfo("tinker", self.seed, 1, 0, ("tinker",), self.scratch)
        return ComponentContext(run, role, "tinker", seed, self.scratch / "state")

    @cached_property
    def most_adapters(self) -> int:
        """How many adapters of the model an engine serves at once; 0: it samples from whole weights only."""
        if "adapters" not in self.catalog.flags(Kind.ENGINE, self.engine[0]):
            return 0
        return cast(ServesAdapters, self.build_engine()).most_adapters

    @cached_property
    def digest(self) -> str:
        """By which adapters name the model; reads all of it."""
        return digest_of_model(ModelFolder.read(self.folder).files)

    @property
    def trainer_flags(self) -> frozenset[str]:
        """Capabilities of the trainer."""
        return self.catalog.flags(Kind.TRAINER, self.trainer[0])

    def tokenizer(self) -> Tokenizer:
        """That of the folder."""
        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))
