from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astraflow_core.errors import WeightsError
from astraflow_core.testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_core.types import WeightSource
from astraflow_core.wire.model_digest import digest_of_model

TOKENS = np.array([5, 9, 3, 7, 11, 2, 30, 4], np.int32)


def adapt(
    folder: Path, target: Path, version: int, pattern: str
) -> tuple[WeightSource, dict[str, torch.Tensor]]:
    """An adapter for the matrices whose names contain ``pattern``, and the state that it makes, in float64."""
    generator = torch.Generator().manual_seed(version)
    factors, merged = {}, load_file(folder / "model.safetensors")
    for name, weight in merged.items():
        if pattern in name and name.endswith("_proj.weight"):
            a = torch.randn(4, weight.shape[1], generator=generator)
            b = torch.randn(weight.shape[0], 4, generator=generator) * 0.2
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            merged[name] = weight.double() + b.double() @ a.double()
    path = target / f"adapter-{version}.safetensors"
    save_file(factors, path)
    base = digest_of_model([folder / "model.safetensors"])
    return WeightSource("p", version, path, f"d{version}", 0, 0.0, "adapter", base), merged


def reference(folder: Path, merged: dict[str, torch.Tensor]) -> np.ndarray:
    """Log-probs of :data:`TOKENS` by Hugging Face, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.load_state_dict({name: value.double() for name, value in merged.items()}, strict=False)
    ids = torch.from_numpy(TOKENS.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    found = logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()
    return np.concatenate([[0.0], found])


class TestTorchEngine(EngineConformance):
    own_tests: ClassVar[dict[str, str]] = {"lora": "test_an_adapter_is_merged_into_its_base"}

    @pytest.fixture
    def component(self) -> Subject:
        return installed("engine", "torch", {"device": "cpu"})

    def test_an_adapter_is_merged_into_its_base(
        self, serve: Any, write_model: Any, tmp_path: Path
    ) -> None:
        """Exactly, however many came before, and whatever they changed."""
        folder, other = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
        first, _ = adapt(folder, tmp_path, 1, "")
        second, merged = adapt(folder, tmp_path, 2, "mlp")
        stranger, _ = adapt(other, tmp_path, 3, "")
        on_other, merged_other = adapt(other, tmp_path, 5, "self_attn")

        async def scenario() -> None:
            async with serve(folder) as engine:
                await engine.pause("keep")
                await engine.load_weights(first)
                await engine.load_weights(second)
                await engine.resume()
                np.testing.assert_allclose(
                    await engine.score(TOKENS), reference(folder, merged), atol=2e-5
                )
                await engine.pause("keep")
                with pytest.raises(
                    WeightsError, match=f"base {stranger.base}; {second.base} is loaded"
                ):
                    await engine.load_weights(stranger)
                await engine.resume()
                np.testing.assert_allclose(
                    await engine.score(TOKENS), reference(folder, merged), atol=2e-5
                )
                assert (await engine.health())["version"] == 2
                await engine.pause("keep")
                whole = WeightSource(
                    "p", 4, other / "model.safetensors", stranger.base or "", 0, 0.0
                )
                await engine.load_weights(whole)
                with pytest.raises(WeightsError, match="is loaded"):
                    await engine.load_weights(first)
                await engine.load_weights(on_other)
                await engine.resume()
                expected = reference(other, merged_other)
                np.testing.assert_allclose(await engine.score(TOKENS), expected, atol=2e-5)

        asyncio.run(scenario())
