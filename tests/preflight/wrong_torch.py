"""An engine with a framework that does two things wrong, which have nothing to do with each other."""

from __future__ import annotations

import mutants_engine

from astraflow_core.types import WeightSource
from astraflow_plugin_torch_engine.config import TorchEngineConfig


class ShiftedAndNeverLoads(mutants_engine.ShiftedScore):
    """Scores the next token, which it never samples by; loads nothing, and says that it has."""

    Config = TorchEngineConfig
    capabilities = frozenset(
        {"pause.keep", "pause.wait", "pause.abort", "weights.path", "weights.inflight", "score"}
    )

    async def load_weights(self, source: WeightSource) -> None:
        return
