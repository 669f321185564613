"""What the trainer says no to, before it loads anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from megatron_cases import NO_CUDA, component, write_model

from astraflow_core.component import Kind
from astraflow_core.errors import ConfigError, UserError
from astraflow_core.types import Ranks
from astraflow_plugin_megatron.architecture import check_split, read_architecture
from astraflow_tiny_model.folder import write_tiny_model

Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(model_type="gpt2"), "not 'gpt2'"),
        (lambda c: c.update(hidden_act="gelu"), "hidden_act 'gelu'"),
        (
            lambda c: c.update(use_sliding_window=True, sliding_window=8, max_window_layers=0),
            "slid",
        ),
        (lambda c: c.update(attention_bias=True), "bias of the attention"),
        (lambda c: c.update(rope_scaling={"rope_type": "linear", "factor": 2.0}), "'linear'"),
        (lambda c: c.update(model_type="qwen3_moe", mlp_only_layers=[0]), "dense layers among"),
    ],
)
def test_models_that_it_does_not_compute(change: Change, words: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=words):
        read_architecture(folder)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "expert", "words"),
    [
        (4, 1, 1, "tensor_parallel = 4 does not divide the model's 2 key-value heads"),
        (1, 3, 1, "pipeline_parallel = 3 does not divide the model's 2 layers"),
        (1, 1, 2, "expert_parallel = 2, but the model has no experts"),
    ],
)
def test_splits_that_leave_a_remainder(
    tensor: int, pipeline: int, expert: int, words: str, tmp_path: Path
) -> None:
    arch = read_architecture(write_tiny_model(tmp_path / "model"))
    with pytest.raises(UserError, match=words):
        check_split(arch, tensor, pipeline, expert)


@pytest.mark.parametrize(
    ("tensor", "expert", "words"),
    [
        (2, 1, "is not supported; shard experts and layers"),
        (1, 3, "expert_parallel = 3 does not divide the model's 128 experts"),
    ],
)
def test_splits_of_models_with_experts(
    tensor: int, expert: int, words: str, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_moe"}))
    with pytest.raises(UserError, match=words):
        check_split(read_architecture(folder), tensor, 1, expert)


def test_float32_versions_of_a_bfloat16_model(tmp_path: Path) -> None:
    keys = {"compute_dtype": "bfloat16", "publish_dtype": "float32"}
    with pytest.raises(ConfigError, match="no more digits to publish"):
        component(Kind.TRAINER, "megatron", keys, tmp_path, Ranks())


def test_a_sequence_that_no_one_shares(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ranks of tensor_parallel, which is 1; set it to 2"):
        component(Kind.TRAINER, "megatron", {"sequence_parallel": True}, tmp_path, Ranks())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "targets", "words"),
    [
        ("qwen3", ("q_proj", "wqkv"), "no linear layers wqkv; it has down_proj, gate_proj, k_proj"),
        ("qwen3_moe", ("q_proj", "up_proj"), "no linear layers up_proj outside its experts"),
    ],
)
def test_adapters_on_layers_that_are_not_there(
    kind: str, targets: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    from astraflow_plugin_megatron.weights.adapters import check_targets

    arch = read_architecture(write_model(tmp_path / "model", kind))
    check_targets(arch, ("q_proj", "k_proj", "v_proj", "o_proj"))
    with pytest.raises(UserError, match=words):
        check_targets(arch, targets)


@NO_CUDA
@pytest.mark.backend
def test_cuda_where_there_is_none(tmp_path: Path) -> None:
    trainer = component(Kind.TRAINER, "megatron", {}, tmp_path, Ranks())
    with pytest.raises(UserError, match="needs CUDA"):
        trainer.setup(write_tiny_model(tmp_path / "model"), 1, frozenset())


@pytest.mark.backend
def test_the_stand_in_where_there_is_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    trainer = component(Kind.TRAINER, "megatron", {"device": "cpu"}, tmp_path, Ranks())
    with pytest.raises(UserError, match="this one has NVIDIA H100"):
        trainer.setup(write_tiny_model(tmp_path / "model"), 1, frozenset())


@NO_CUDA
@pytest.mark.backend
def test_ranks_that_do_not_fill_a_replica(tmp_path: Path) -> None:
    keys = {"device": "cpu", "tensor_parallel": 2}
    trainer = component(Kind.TRAINER, "megatron", keys, tmp_path, Ranks(0, 3, 0))
    with pytest.raises(UserError, match="has 3 ranks, but tensor_parallel = 2"):
        trainer.setup(write_tiny_model(tmp_path / "model"), 1, frozenset())


@NO_CUDA
@pytest.mark.backend
def test_replicas_that_experts_are_not_shared_out_over(tmp_path: Path) -> None:
    keys = {"device": "cpu", "expert_parallel": 2}
    trainer = component(Kind.TRAINER, "megatron", keys, tmp_path, Ranks(0, 3, 0))
    model = write_model(tmp_path / "model", "qwen3_moe")
    with pytest.raises(UserError, match="has 3 replicas, which expert_parallel = 2 does not"):
        trainer.setup(model, 1, frozenset())


@NO_CUDA
@pytest.mark.backend
@pytest.mark.parametrize("tie", [True, False])
def test_weights_that_are_not_those_of_the_configuration(tie: bool, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", tie=tie)
    config = json.loads((folder / "config.json").read_text())
    more = write_tiny_model(tmp_path / "more", layers=config["num_hidden_layers"] + 1, tie=tie)
    for source, target, words in ((folder, more, "lacks 11"), (more, folder, "has besides 11")):
        keep = (target / "config.json").read_text()
        mixed = tmp_path / f"mixed-{words.split()[0]}"
        mixed.mkdir()
        (mixed / "config.json").write_text(keep)
        (mixed / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
        trainer = component(Kind.TRAINER, "megatron", {"device": "cpu"}, tmp_path, Ranks())
        with pytest.raises(UserError, match=words):
            trainer.setup(mixed, 1, frozenset())
        trainer.close()
