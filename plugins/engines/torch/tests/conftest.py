"""Tiny models with distinct next tokens, an engine on each, and Hugging Face as the reference."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from astraflow_core.types import ComponentContext, RunInfo
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.engine import TorchEngine

sys.path.insert(0, str(Path(__file__).parent))  # for adapter_cases


def write_model(folder: Path, kind: str = "qwen3", tie: bool = True, seed: int = 0) -> Path:
    """A model of vocabulary 32 and context 96 whose distributions are far from uniform."""
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[kind](
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=96,
        tie_word_embeddings=tie, eos_token_id=1, pad_token_id=0, bos_token_id=None,
        initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return write_model(tmp_path_factory.mktemp("other"), seed=1)


Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]
WriteModel = Callable[..., Path]


@pytest.fixture(name="write_model")
def _write_model() -> WriteModel:
    return write_model


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """``async with serve(folder, **keys) as engine``."""

    @asynccontextmanager
    async def run(
        folder: Path, seed: int = 0, device: str = "cpu", **keys: Any
    ) -> AsyncIterator[TorchEngine]:
        info = RunInfo("test", 0, 1, 1, ("p",), tmp_path)
        context = ComponentContext(info, "engine", "p", seed, tmp_path)
        engine = TorchEngine(TorchEngineConfig(device=device, **keys), context)
        await engine.start(folder)
        try:
            yield engine
        finally:
            await engine.close()

    return run
