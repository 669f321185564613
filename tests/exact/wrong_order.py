"""An engine that is exact by itself, and adds up in another order than the trainer."""

from __future__ import annotations

from pathlib import Path

from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.manifest import astraflow_engines
from astraflow_torch_weights import batch_invariant


class ShorterBlocks(TorchEngine):
    """Attention over blocks of 4 keys."""

    Config = TorchEngineConfig
    capabilities = astraflow_engines()[0].capabilities

    async def start(self, model: Path) -> None:
        batch_invariant.KEYS = 4
        await super().start(model)
