"""Engines with a framework that each do one thing wrong."""

from __future__ import annotations

import mutants_engine

from astraflow_core.types import WeightSource
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine


class ShiftedScore(mutants_engine.ShiftedScore):
    Config = TorchEngineConfig
    capabilities = frozenset(
        {"pause.keep", "pause.wait", "pause.abort", "weights.path", "weights.inflight", "score"}
    )


class NeverLoads(TorchEngine):
    """Loads nothing, and says that it has."""

    Config = TorchEngineConfig
    capabilities = ShiftedScore.capabilities

    async def load_weights(self, source: WeightSource) -> None:
        return
