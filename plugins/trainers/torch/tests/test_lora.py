from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from trainer_cases import Surrogate, make_batch, prepared
from transformers import AutoModelForCausalLM

from astraflow_core.errors import RunFailed, UserError
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_torch_training.memory import enough_memory_for_state

Build = Callable[..., TorchTrainer]
KEYS = {"lora_rank": 3, "lora_alpha": 5.0, "lr": 1e-2, "publish_dtype": "float32"}
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

COMPILED = pytest.mark.turns(
    "plugins/trainers/torch/src/**/*.py",
    "plugins/trainers/torch/tests/conftest.py",
    "plugins/trainers/torch/tests/trainer_cases.py",
    "libs/torch_training/src/**/*.py",
    "libs/training/src/**/*.py",
)
"""What a compiled model depends on, with the version of torch."""


def train(trainer: TorchTrainer, seeds: range) -> list[float]:
    losses = []
    for seed in seeds:
        algorithm = Surrogate()
        batch = prepared(make_batch(seed), algorithm, trainer)
        losses.append(trainer.step(batch, algorithm, seed)["loss"])
    return losses


def exported(trainer: TorchTrainer) -> dict[str, np.ndarray]:
    return {
        t.name: np.frombuffer(bytes(t.data), np.float32).reshape(t.shape) for t in trainer.export()
    }


def test_the_adapter_is_what_is_published_and_what_was_trained(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    trainer = build(folder, **KEYS)
    assert trainer.weights_kind == "adapter"
    assert not any(t.any() for name, t in exported(trainer).items() if "lora_B" in name)
    train(trainer, range(3))
    adapter = exported(trainer)
    layer = "base_model.model.model.layers.1.self_attn.q_proj"
    assert {f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"} <= adapter.keys()
    assert len(adapter) == 2 * 2 * len(LAYERS)
    assert adapter[f"{layer}.lora_A.weight"].shape[0] == 3

    trainer.save_model(tmp_path / "model")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "model"))
    assert after.keys() == before.keys()
    for name, weight in before.items():
        module = "base_model.model." + name.removesuffix(".weight")
        if (low := adapter.get(f"{module}.lora_A.weight")) is not None:
            high = adapter[f"{module}.lora_B.weight"]
            assert high.any()
            weight = weight + high.astype(np.float64) @ low.astype(np.float64)
        np.testing.assert_allclose(after[name], weight, atol=1e-6, err_msg=name)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "float32"
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    again = build(tmp_path / "model")
    batch = make_batch(9)
    np.testing.assert_allclose(
        again.logprobs(batch, "current"), trainer.logprobs(batch, "current"), atol=1e-5
    )


def test_the_reference_is_the_model_without_its_adapter(build: Build, folder: Path) -> None:
    trainer, batch = build(folder, **KEYS), make_batch(9)
    first = trainer.logprobs(batch, "current")
    train(trainer, range(2))
    assert (trainer.logprobs(batch, "reference") == first).all()
    assert np.abs(trainer.logprobs(batch, "current") - first).max() > 1e-3
    other = build(folder, needs=frozenset(), **KEYS)
    with pytest.raises(UserError, match="no reference model"):
        other.logprobs(batch, "reference")


def test_the_step_is_that_of_the_same_layers_written_out(build: Build, folder: Path) -> None:
    """The gradient of B and A by the chain rule, from the gradient that the full weight would have."""
    adapters, full = build(folder, max_grad_norm=0, **KEYS), build(folder, max_grad_norm=0)
    seen: dict[str, torch.Tensor] = {}

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        owner = adapters if optimizer in adapters._optimizers else full
        for name, parameter in owner._model.whole.named_parameters():
            if parameter.grad is not None:
                seen[f"{owner is full}/{name}"] = parameter.grad.clone()

    for trainer in (adapters, full):
        trainer._optimizers[0].register_step_pre_hook(note)
        train(trainer, range(1))
    name = "model.layers.0.mlp.down_proj"
    low = dict(adapters._model.whole.named_parameters())
    assert f"False/{name}.weight" not in seen
    # B is 0 in the first step, so that nothing reaches A.
    assert not seen[f"False/{name}.lora_A"].any()
    trained = build(folder, max_grad_norm=0, **KEYS)
    start = dict(trained._model.whole.named_parameters())[f"{name}.lora_A"]
    expected = seen[f"True/{name}.weight"] @ start.T * (5.0 / 3)
    torch.testing.assert_close(seen[f"False/{name}.lora_B"], expected, rtol=1e-4, atol=1e-7)
    assert low[f"{name}.lora_A"].shape == start.shape


@pytest.mark.parametrize("keys", [KEYS, {"optimizer": "muon", "lr": 1e-2}], ids=["lora", "muon"])
def test_the_step_after_loading_is_bitwise_the_same(
    keys: dict[str, object], build: Build, folder: Path, tmp_path: Path
) -> None:
    through = build(folder, **keys)
    train(through, range(2))
    through.save(tmp_path)
    held = load_file(tmp_path / "weights.safetensors")
    assert all(".lora_" in name for name in held) == ("lora_rank" in keys)
    expected = train(through, range(2, 4))
    fresh = build(folder, **keys)
    fresh.load(tmp_path)
    assert train(fresh, range(2, 4)) == expected
    for one, two in zip(fresh.export(), through.export(), strict=True):
        assert bytes(one.data) == bytes(two.data)


def test_muon_moves_matrices_and_adamw_the_rest(build: Build, folder: Path) -> None:
    trainer = build(folder, optimizer="muon", lr=1e-2)
    names = {p: n for n, p in trainer._model.whole.named_parameters()}
    muon, adam = (
        {names[p] for group in optimizer.param_groups for p in group["params"]}
        for optimizer in trainer._optimizers
    )
    assert type(trainer._optimizers[0]).__name__ == "Muon"
    assert muon == {n for n in names.values() if n.endswith("_proj.weight")}
    assert adam == set(names.values()) - muon
    batch, algorithm = make_batch(0), Surrogate()
    losses = [
        trainer.step(prepared(batch, algorithm, trainer), algorithm, step)["loss"]
        for step in range(6)
    ]
    assert losses[-1] < losses[0]


def test_targets_that_are_not_there_are_refused(build: Build, folder: Path) -> None:
    with pytest.raises(UserError, match=r"no linear layers qq_proj; it has .*q_proj"):
        build(folder, lora_rank=2, lora_targets=("qq_proj", "k_proj"))


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (64, "set micro_batch_tokens = 32"),
        (16, "longest row has 12 tokens.*gradient_checkpointing"),
    ],
)
def test_out_of_memory_says_what_to_try(
    budget: int, said: str, build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, algorithm = build(folder, micro_batch_tokens=budget), Surrogate()
    batch = prepared(make_batch(0), algorithm, trainer)
    assert batch.lengths.max() == 12

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 MiB")

    monkeypatch.setattr(type(trainer._model.whole.model), "forward", fail)
    with pytest.raises(RunFailed, match=rf"out of memory: .*{said}"):
        trainer.step(batch, algorithm, 0)


def test_memory_that_no_micro_batch_would_save_is_advised_about(
    build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moments are made in the first step; the allocator on CPU has no error of its own."""
    trainer, algorithm = build(folder), Surrogate()
    batch = prepared(make_batch(0), algorithm, trainer)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros_like", lambda *_, **__: torch.empty(1 << 58))
        with pytest.raises(RunFailed, match=r"optimizer's state: .*more ranks"):
            trainer.step(batch, algorithm, 0)
    with pytest.raises(RuntimeError, match="negative dimension"), enough_memory_for_state("it"):
        torch.empty(-1)


def test_moments_in_eight_bits(build: Build, tmp_path: Path) -> None:
    """The step runs as written; compiled it takes seconds for each shape."""
    pytest.importorskip("torchao", reason="torchao is not installed")
    folder = write_tiny_model(tmp_path / "model", hidden=64, layers=1, heads=2, kv_heads=1)
    keys = {"optimizer": "adamw8bit", "lr": 1e-3, "schedule": "linear", "warmup_steps": 2}
    with torch.compiler.set_stance("force_eager"):
        through, plain = build(folder, **keys), build(folder, **{**keys, "optimizer": "adamw"})
        train(through, range(2)), train(plain, range(2))
        kinds = set()
        for (name, one), two in zip(
            through._model.whole.named_parameters(), plain._model.whole.parameters(), strict=True
        ):
            kind = type(through._optimizers[0].state[one]["exp_avg"]).__name__
            kinds.add(kind)
            assert (kind == "OptimState8bit") == (one.numel() >= 4096), name
            # None is a step away from where float32 moments bring it, and most are near.
            assert (one - two).abs().max() < 1e-3, name
            assert (one - two).abs().mean() < 1e-4, name
        assert kinds == {"Tensor", "OptimState8bit"}
        (tmp_path / "saved").mkdir()
        through.save(tmp_path / "saved")
        expected = train(through, range(2, 4))
        fresh = build(folder, **keys)
        fresh.load(tmp_path / "saved")
        assert train(fresh, range(2, 4)) == expected
    for one, two in zip(fresh.export(), through.export(), strict=True):
        assert bytes(one.data) == bytes(two.data)


def test_what_to_install_for_eight_bits_is_reported(
    build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(
        UserError, match=r"pip install 'astraflow-plugin-torch-trainer\[adamw8bit\]'"
    ):
        build(folder, optimizer="adamw8bit")


@pytest.mark.parametrize("keys", [{"compile": True}, {"optimizer": "adamw8bit"}], ids=str)
def test_a_missing_compiler_is_named(
    keys: dict[str, object], build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="there is no no-such-compiler: install g"):
        build(folder, **keys)


@COMPILED
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler (g++)")
def test_generated_code_computes_the_same(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs of a model of one layer, to have little to compile; a step is traced by the test below."""
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    folder = write_tiny_model(tmp_path / "model", hidden=16, layers=1, heads=2, kv_heads=1)
    keys = {"needs": frozenset(), "attention": "eager"}
    expected, got = build(folder, **keys), build(folder, compile=True, **keys)
    batch = make_batch(3)
    np.testing.assert_allclose(
        got.logprobs(batch, "current"), expected.logprobs(batch, "current"), atol=1e-5
    )


@COMPILED
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_model_computes_the_same(
    build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as a whole, the backward pass too, and run without generated code, which takes minutes to compile."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    batch = make_batch(3)
    expected, got = build(folder), build(folder, compile=True)
    np.testing.assert_allclose(
        got.logprobs(batch, "current"), expected.logprobs(batch, "current"), atol=1e-5
    )
    np.testing.assert_allclose(train(got, range(2)), train(expected, range(2)), rtol=1e-4)
    names = [tensor.name for tensor in got.export()]
    assert names == [tensor.name for tensor in expected.export()]
