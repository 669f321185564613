"""What goes wrong before anything is computed."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Olmo2Config,
    Qwen3Config,
)

from astraflow_core.errors import ConfigError, DeadlineExceeded, UserError
from astraflow_plugin_fsdp import group, tensor_parallel
from astraflow_plugin_fsdp.config import FsdpConfig
from astraflow_plugin_fsdp.group import join
from astraflow_plugin_fsdp.sharding import _layers
from astraflow_runtime.config.loading import load_config

SIZES: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
ENOUGH_S = 1.5
"""For a loaded machine to reach the meeting place, where nobody else will come."""


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Any:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return store


def test_the_missing_ranks_are_named(meeting: Any) -> None:
    with pytest.raises(DeadlineExceeded, match="ranks 0, 2 of 3"):
        join(1, 3, 1, "cpu", 1, ENOUGH_S)
    assert not dist.is_initialized()


def test_what_ranks_said_before_a_restart_does_not_count(
    meeting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_meetings", itertools.count())
    with pytest.raises(DeadlineExceeded, match="rank 0 of 2"):
        join(1, 2, 1, "cpu", 1, ENOUGH_S)
    monkeypatch.setattr(group, "_meetings", itertools.count())  # as in a new process
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(DeadlineExceeded, match="rank 1 of 2"):
        join(0, 2, 0, "cpu", 1, ENOUGH_S)


def test_a_rank_without_a_meeting_place_names_rank_0(
    meeting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    closed = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_PORT", str(closed.port))
    del closed
    with pytest.raises(DeadlineExceeded, match="rank 0 of 2"):
        join(1, 2, 1, "cpu", 1, 0.3)


def test_replicas_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(UserError, match="does not divide 3 ranks"):
        join(0, 3, 0, "cpu", 2, 1.0)


def test_a_mesh_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(UserError, match="replicas = 2 x tensor_parallel = 2 does not divide 6"):
        join(0, 6, 0, "cpu", 2, 1.0, tensor_parallel=2)
    with pytest.raises(UserError, match="context_parallel = 4 does not divide 6"):
        join(0, 6, 0, "cpu", 1, 1.0, context_parallel=4)


def test_another_attention_than_that_of_ranks_that_share_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="attend by sdpa"):
        FsdpConfig(context_parallel=2, attention="eager")


@pytest.mark.parametrize(
    ("config", "ranks", "said"),
    [
        (Qwen3Config(**SIZES), 4, "does not divide num_key_value_heads = 2 of Qwen3ForCausalLM"),
        (Olmo2Config(**SIZES), 2, "Olmo2ForCausalLM differ in .*k_norm.*: set tensor_parallel = 1"),
        (GPT2Config(n_layer=1, n_embd=8, n_head=2), 2, "GPT2LMHeadModel differ in .*mlp.c_fc"),
        (Qwen3Config(**SIZES), 2, None),
        (LlamaConfig(**SIZES), 2, None),
    ],
    ids=["heads", "olmo2", "gpt2", "qwen3", "llama"],
)
def test_what_tensor_parallelism_cannot_cut_is_refused(
    config: Any, ranks: int, said: str | None
) -> None:
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        tensor_parallel.check(whole, _layers(whole), ranks)


def test_a_rank_without_a_device_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="local rank 1 finds 0 CUDA devices"):
        join(1, 2, 1, "cuda", 1, 1.0)


def test_one_rank_needs_no_other(tmp_path: Path) -> None:
    one, other = (join(0, 1, 0, "cpu", 1, 5.0) for _ in range(2))
    one.leave()
    assert other.exchange({"here": 1}) == [{"here": 1}]
    other.leave()
    assert not dist.is_initialized()


def test_shards_need_a_transport_that_takes_them() -> None:
    file = Path(__file__).parents[4] / "examples" / "fsdp.toml"
    sharded = "policies.solver.trainer.publish=sharded"
    load_config(file, [sharded, "policies.solver.transport.use=http"])
    with pytest.raises(
        ConfigError, match="'sharded' needs transport capability sharded; 'shm' lacks it"
    ):
        load_config(file, [sharded, "policies.solver.transport.use=shm"])
