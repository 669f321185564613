"""What is done for a GPU between steps, on any machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from astraflow_torch_training import model
from astraflow_torch_training.config import TrainingConfig
from astraflow_torch_training.gradient import Tally
from astraflow_torch_training.host_memory import Waiting
from astraflow_torch_training.memory import peak_memory_gb
from astraflow_torch_weights.fake_cuda import MEMORY_BYTES, FakeCuda

GPU = torch.device("cuda", 0)


def test_a_clock_waits_for_the_device_at_both_ends() -> None:
    with FakeCuda() as cuda:
        tally = Tally(GPU)
        with tally.clock("forward_s"):
            cuda.asked.append(("work",))
    assert cuda.asked == [("synchronize", "cuda:0"), ("work",), ("synchronize", "cuda:0")]
    assert tally.seconds["forward_s"] >= 0


@pytest.mark.slow
def test_what_waits_in_host_memory_gives_the_devices_back() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    with FakeCuda() as cuda:
        Waiting([optimizer], [])
    assert cuda.asked == [("empty_cache",)]


def test_the_peak_is_that_of_the_device() -> None:
    with FakeCuda():
        assert peak_memory_gb(GPU) == MEMORY_BYTES / 1e9
        assert peak_memory_gb(torch.device("cpu")) != MEMORY_BYTES / 1e9


@pytest.mark.parametrize(
    ("keys", "device", "expected"),
    [
        ({"compute_dtype": "bfloat16"}, GPU, "flash_attention_2"),
        ({"compute_dtype": "bfloat16"}, torch.device("cpu"), "sdpa"),
        ({"compute_dtype": "float32"}, GPU, "sdpa"),
        ({"compute_dtype": "bfloat16", "layout": "tree"}, GPU, "sdpa"),
        ({"compute_dtype": "bfloat16", "attention": "eager"}, GPU, "eager"),
        ({"attention": "flex_attention"}, GPU, "flex_attention"),
    ],
)
def test_flash_attention_is_taken_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], device: torch.device, expected: str
) -> None:
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    assert model.attention_of(TrainingConfig(**keys), device) == expected
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    assert model.attention_of(TrainingConfig(**keys), device) in ("sdpa", keys.get("attention"))
