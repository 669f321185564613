"""What engines and trainers are compared with is itself compared with transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from astraflow_testing.conformance._models.qwen3 import logits
from astraflow_tiny_model.folder import write_tiny_model


@pytest.mark.parametrize("tie", [True, False])
def test_logits_are_those_of_transformers_however_they_are_cut(tmp_path: Path, tie: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = write_tiny_model(tmp_path / "model", hidden=32, layers=3, init_std=0.3, tie=tie)
    file = folder / "model.safetensors"
    ids = np.random.default_rng(0).integers(2, 27, 40).astype(np.int32)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
    whole = logits(folder, [(file, ids)])
    # transformers computes rotary angles in float32.
    np.testing.assert_allclose(whole, expected, atol=2e-5)
    parts = logits(folder, [(file, ids[:7]), (file, ids[7:8]), (file, ids[8:])])
    np.testing.assert_allclose(parts, whole, atol=1e-12)


def test_other_weights_continue_over_the_keys_and_values_of_the_old(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folders = [
        write_tiny_model(tmp_path / str(seed), hidden=32, init_std=0.3, seed=seed)
        for seed in (0, 1)
    ]
    ids = np.random.default_rng(0).integers(2, 27, 30).astype(np.int32)
    cache, expected = None, []
    for folder, part in zip(folders, (ids[:12], ids[12:]), strict=True):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        with torch.no_grad():
            given = torch.from_numpy(part.astype(np.int64))[None]
            out = model(given, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        expected.append(out.logits[0].numpy())
    files = [folder / "model.safetensors" for folder in folders]
    got = logits(folders[0], [(files[0], ids[:12]), (files[1], ids[12:])])
    np.testing.assert_allclose(got, np.concatenate(expected), atol=2e-5)
