"""Steps, log-probs, export and state of the trainer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from trainer_cases import Surrogate, make_batch, prepared
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.types import Batch
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_training.schedule import lr_factor

Build = Callable[..., TorchTrainer]
LR = {"lr": 1e-3, "betas": (0.9, 0.95)}


def hf_logprobs(folder: Path, batch: Batch) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    result = np.zeros(len(batch.tokens))
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1] / batch.temperature
        values = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        result[start + 1 : end] = values.numpy()
    return result


def exported(trainer: TorchTrainer) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {t.name: (t.dtype, t.shape, bytes(t.data)) for t in trainer.export()}


def train(trainer: TorchTrainer, steps: int, first: int = 0) -> list[dict[str, float]]:
    algorithm = Surrogate()
    metrics = []
    for step in range(first, first + steps):
        batch = prepared(make_batch(seed=step), algorithm, trainer)
        metrics.append(trainer.step(batch, algorithm, step))
    return metrics


@pytest.mark.parametrize(
    "keys", [{}, {"layout": "packed"}, {"layout": "tree"}, {"micro_batch_tokens": 9}]
)
def test_logprobs_equal_transformers(build: Build, folder: Path, keys: dict[str, Any]) -> None:
    batch = make_batch()
    got = build(folder, **keys).logprobs(batch, "current")
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, hf_logprobs(folder, batch), atol=5e-6)
    assert not got[batch.offsets[:-1]].any()


def test_reference_stays_the_initial_model(build: Build, folder: Path) -> None:
    trainer, batch = build(folder, **LR), make_batch()
    before = trainer.logprobs(batch, "current")
    np.testing.assert_array_equal(trainer.logprobs(batch, "reference"), before)
    train(trainer, 2)
    np.testing.assert_array_equal(trainer.logprobs(batch, "reference"), before)
    assert np.abs(trainer.logprobs(batch, "current") - before).max() > 1e-3


def test_the_reference_may_be_another_model(build: Build, folder: Path, tmp_path: Path) -> None:
    teacher = write_tiny_model(tmp_path / "teacher", hidden=16, layers=1, init_std=0.3, seed=5)
    batch = make_batch()
    trainer = build(folder, reference_model=str(teacher), **LR)
    got = trainer.logprobs(batch, "reference")
    np.testing.assert_allclose(got, hf_logprobs(teacher, batch), atol=5e-6)
    train(trainer, 2)
    np.testing.assert_array_equal(trainer.logprobs(batch, "reference"), got)


def test_a_reference_of_another_vocabulary_is_refused(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(folder)
    config.vocab_size += 1
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="vocabulary"):
        build(folder, reference_model=str(tmp_path / "other"))


def test_reference_is_loaded_only_if_needed(build: Build, folder: Path) -> None:
    with pytest.raises(UserError, match="reference"):
        build(folder, needs=frozenset()).logprobs(make_batch(), "reference")


def test_a_step_does_not_depend_on_micro_batches(build: Build, folder: Path) -> None:
    outcomes = []
    for keys in ({}, {"micro_batch_tokens": 11}, {"layout": "packed", "micro_batch_tokens": 40}):
        trainer = build(folder, publish_dtype="float32", **LR, **keys)
        metrics = train(trainer, 3)[-1]
        weights = np.concatenate(
            [np.frombuffer(data, np.float32) for _, _, data in exported(trainer).values()]
        )
        outcomes.append((metrics["loss"], metrics["grad_norm"], weights))
    for loss, norm, weights in outcomes[1:]:
        assert loss == pytest.approx(outcomes[0][0], rel=1e-4)
        assert norm == pytest.approx(outcomes[0][1], rel=1e-4)
        np.testing.assert_allclose(weights, outcomes[0][2], atol=2e-5)


def test_the_log_probs_of_a_step_are_those_of_a_pass_before_it(build: Build, folder: Path) -> None:
    trainer, algorithm = build(folder, micro_batch_tokens=16), Surrogate()
    assert trainer.step_logprobs() is None
    batch = prepared(make_batch(), algorithm, trainer)
    before = hf_logprobs(folder, batch)
    trainer.step(batch, algorithm, 0)
    found = trainer.step_logprobs()
    assert found is not None
    np.testing.assert_allclose(found[batch.loss_mask], before[batch.loss_mask], atol=1e-5)
    assert not found[~batch.loss_mask].any()


def test_metrics_of_a_step(build: Build, folder: Path) -> None:
    trainer, algorithm = build(folder, micro_batch_tokens=40), Surrogate()
    batch = prepared(make_batch(), algorithm, trainer)
    metrics = trainer.step(batch, algorithm, 0)
    assert metrics["tokens"] == len(batch.tokens)
    assert metrics["trained_tokens"] == batch.trained_tokens
    assert metrics["lr"] == pytest.approx(1e-6)
    assert 0 < metrics["padding_fraction"] < 0.5
    assert metrics["loss"] == pytest.approx(
        metrics["loss_policy"] + metrics["loss_kl"] + metrics["loss_entropy"], rel=1e-5
    )
    weight = sum(
        (i.weights["policy"] * (i.logprobs - i.behaviour).exp()).sum() for i in algorithm.seen
    )
    assert metrics["ratio_mean"] == pytest.approx(weight.item(), rel=1e-5)
    surprise = -sum(i.logprobs.sum() for i in algorithm.seen)
    assert metrics["entropy_estimate"] == pytest.approx(
        surprise.item() / batch.trained_tokens, rel=1e-5
    )
    assert all(metrics[f"{part}_s"] > 0 for part in ("forward", "backward", "optimizer"))


def test_optimizer_step_equals_adamw_written_out(build: Build, folder: Path) -> None:
    """Clipping, bias correction and decay by hand for one step; embeddings and norms do not decay."""
    keys = {"lr": 0.01, "eps": 1e-8, "weight_decay": 0.5, "max_grad_norm": 0.1}
    trainer, algorithm = build(folder, publish_dtype="float32", **keys), Surrogate()
    batch = prepared(make_batch(), algorithm, trainer)
    before = {n: p.detach().clone() for n, p in trainer._model.whole.named_parameters()}
    gradients: dict[str, torch.Tensor] = {}
    handles = [
        p.register_post_accumulate_grad_hook(
            lambda p, n=n: gradients.__setitem__(n, p.grad.clone())
        )
        for n, p in trainer._model.whole.named_parameters()
    ]
    metrics = trainer.step(batch, algorithm, 0)
    for handle in handles:
        handle.remove()
    norm = float(torch.sqrt(sum((g.double() ** 2).sum() for g in gradients.values())))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert norm > 0.1
    for name, parameter in trainer._model.whole.named_parameters():
        clipped = gradients[name].double() * 0.1 / norm
        decay = 0.5 if parameter.ndim == 2 and "embed" not in name else 0.0
        # After one step both moments, bias-corrected, are the gradient and its square.
        expected = before[name].double() * (1 - 0.01 * decay)
        expected -= 0.01 * clipped / (clipped.abs() + 1e-8)
        sure = clipped.abs() > 1e-6
        torch.testing.assert_close(
            parameter.detach().double()[sure], expected[sure], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("poison", ["advantage", "weights"])
def test_non_finite_loss_changes_nothing(build: Build, folder: Path, poison: str) -> None:
    trainer, algorithm = build(folder, micro_batch_tokens=30, **LR), Surrogate()
    train(trainer, 1)
    good = prepared(make_batch(seed=5), algorithm, trainer)
    bad = good
    assert good.advantages is not None
    if poison == "advantage":
        advantages = good.advantages.copy()
        advantages[np.flatnonzero(good.loss_mask)[3]] = np.nan
        bad = replace(good, advantages=advantages)
    else:
        bad = replace(good, weights={"policy": good.weights["policy"] * np.float32(3e38)})
    before = exported(trainer)
    state = [t.clone() for s in trainer._optimizers[0].state.values() for t in s.values()]
    with pytest.raises(NonFiniteLoss, match="no step was made"):
        trainer.step(bad, algorithm, 1)
    assert exported(trainer) == before
    after = [t for s in trainer._optimizers[0].state.values() for t in s.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, state, strict=True))
    untouched = build(folder, micro_batch_tokens=30, **LR)
    train(untouched, 1)
    assert trainer.step(good, algorithm, 1)["loss"] == untouched.step(good, algorithm, 1)["loss"]
    assert exported(trainer) == exported(untouched)


def test_a_batch_without_trained_tokens_changes_nothing(build: Build, folder: Path) -> None:
    trainer, algorithm = build(folder, **LR), Surrogate()
    train(trainer, 1)
    batch = make_batch()
    batch = prepared(replace(batch, loss_mask=np.zeros_like(batch.loss_mask)), algorithm, trainer)
    before = exported(trainer)
    metrics = trainer.step(batch, algorithm, 0)
    assert (metrics["loss"], metrics["grad_norm"], metrics["padding_fraction"]) == (0, 0, 0)
    assert exported(trainer) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tie", [True, False])
def test_exported_tensors_are_those_of_save_pretrained(
    build: Build, tmp_path: Path, dtype: str, tie: bool
) -> None:
    source = write_tiny_model(tmp_path / "source", hidden=32, tie=tie)
    trainer = build(source, publish_dtype=dtype, **LR)
    train(trainer, 1)
    trained = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    trained.load_state_dict(trainer._model.whole.state_dict())
    trained.save_pretrained(tmp_path / "saved")
    expected = load_file(tmp_path / "saved" / "model.safetensors")
    got = exported(trainer)
    assert got.keys() == expected.keys()
    assert ("lm_head.weight" in got) is not tie
    for name, tensor in expected.items():
        cast = tensor.to(getattr(torch, dtype))
        data = cast.contiguous().view(torch.uint8).numpy().tobytes()
        code = {"float32": "F32", "bfloat16": "BF16"}[dtype]
        assert got[name] == (code, tuple(tensor.shape), data)


def test_exported_names_of_stacked_experts_are_those_of_checkpoints(
    build: Build, tmp_path: Path
) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=27, hidden_size=16, intermediate_size=32, moe_intermediate_size=8,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        num_experts=3, num_experts_per_tok=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "moe")
    trainer = build(tmp_path / "moe", needs=frozenset(), publish_dtype="float32")
    expected = load_file(tmp_path / "moe" / "model.safetensors")
    got = exported(trainer)
    assert got.keys() == expected.keys()
    assert "model.layers.1.mlp.experts.2.down_proj.weight" in got
    for name, tensor in expected.items():
        assert got[name][2] == tensor.numpy().tobytes(), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_model_loads_in_transformers(
    build: Build, folder: Path, tmp_path: Path, dtype: str
) -> None:
    trainer = build(folder, publish_dtype=dtype, **LR)
    train(trainer, 1)
    trainer.save_model(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.dtype == getattr(torch, dtype)
    for name, parameter in trainer._model.whole.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter.to(loaded.dtype)), name
    assert torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("12=")["input_ids"] == [3, 4, 15]


def test_the_step_after_loading_is_bitwise_the_same(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    keys = {"schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1, **LR}
    through = build(folder, **keys)
    train(through, 3)
    (tmp_path / "state").mkdir()
    through.save(tmp_path / "state")
    drawn = torch.rand(3)
    expected = train(through, 2, first=3)
    resumed = build(folder, **keys)
    resumed.load(tmp_path / "state")
    assert torch.equal(torch.rand(3), drawn)
    got = train(resumed, 2, first=3)
    for one, other in zip(got, expected, strict=True):
        untimed = {n: v for n, v in other.items() if not n.endswith(("_s", "_gb"))}
        assert {n: v for n, v in one.items() if not n.endswith(("_s", "_gb"))} == untimed
    assert exported(resumed) == exported(through)
    names = {file.suffix for file in (tmp_path / "state").iterdir()}
    assert names == {".safetensors", ".json"}


def test_a_fresh_trainer_saves_and_loads(build: Build, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    build(folder, **LR).save(tmp_path / "state")
    trainer = build(folder, **LR)
    train(trainer, 2)
    trainer.load(tmp_path / "state")
    fresh = build(folder, **LR)
    assert train(trainer, 1)[0]["loss"] == train(fresh, 1)[0]["loss"]
    assert exported(trainer) == exported(fresh)


def test_checkpoints_that_do_not_fit_are_refused(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    trainer = build(folder)
    (tmp_path / "state").mkdir()
    with pytest.raises(UserError, match="not a checkpoint"):
        trainer.load(tmp_path / "state")
    trainer.save(tmp_path / "state")
    other = build(write_tiny_model(tmp_path / "other", hidden=48))
    with pytest.raises(UserError, match=r"another model.*is \[.*here"):
        other.load(tmp_path / "state")
    with pytest.raises(
        UserError, match=r"state of AdamW, which is not one of Muon and AdamW: .*optimizer"
    ):
        build(folder, optimizer="muon").load(tmp_path / "state")
    state = tmp_path / "state" / "trainer.json"
    state.write_text(json.dumps({"format": 99, "steps": 1}))
    with pytest.raises(UserError, match="format 99"):
        trainer.load(tmp_path / "state")


@pytest.mark.parametrize("tie", [True, False])
def test_a_folder_of_several_files_is_trained_and_saved_whole(
    build: Build, folder: Path, tmp_path: Path, tie: bool
) -> None:
    config = AutoConfig.from_pretrained(folder, tie_word_embeddings=tie)
    shutil.copytree(folder, tmp_path / "parts", ignore=shutil.ignore_patterns("*.safetensors"))
    given = AutoModelForCausalLM.from_config(config)
    given.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    trainer = build(tmp_path / "parts", publish_dtype="float32")
    trainer.save_model(tmp_path / "left")
    left, info = AutoModelForCausalLM.from_pretrained(tmp_path / "left", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert [p.name for p in (tmp_path / "left").glob("*.safetensors*")] == ["model.safetensors"]
    assert (left.lm_head.weight is left.model.embed_tokens.weight) == tie
    for name, tensor in given.state_dict().items():
        assert torch.equal(left.state_dict()[name], tensor), name


def test_folders_that_are_no_model_are_refused(build: Build, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot load"):
        build(tmp_path / "absent")
    shutil.copytree(folder, tmp_path / "half")
    os.truncate(tmp_path / "half" / "model.safetensors", 4000)
    with pytest.raises(UserError, match=r"cannot load .*half"):
        build(tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").rename(tmp_path / "half" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"\*\.bin, which are pickles"):
        build(tmp_path / "half")
    broken = write_tiny_model(tmp_path / "broken", layers=1)
    config = json.loads((broken / "config.json").read_text())
    config["num_hidden_layers"] = 2
    config.pop("layer_types", None)
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="lacks"):
        build(broken)


def test_logits_that_are_not_linear_are_refused(build: Build, tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=27, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, final_logit_softcapping=0.1,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "capped")
    with pytest.raises(UserError, match="softcapping"):
        build(tmp_path / "capped", attention="eager")


@pytest.mark.parametrize("device", ["cuda", "tpu0", "meta"])
def test_absent_devices_are_refused(
    build: Build, folder: Path, device: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = build(folder)
    trainer._config = trainer._config.model_copy(update={"device": device})
    with pytest.raises(UserError, match=device):
        trainer.setup(folder, 1, frozenset())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.55, 0.1]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.55, 0.1]),
    ],
)
def test_schedule(schedule: Any, expected: list[float]) -> None:
    got = [lr_factor(step, 20, schedule, 4, 0.1) for step in (0, 1, 2, 3, 4, 12, 20)]
    assert got == pytest.approx(expected)
    assert lr_factor(8, 20, "cosine", 4, 0.1) == pytest.approx(0.1 + 0.9 * (2 + 2**0.5) / 4)
    assert lr_factor(99, 20, schedule, 4, 0.1) == expected[-1]


def test_learning_rate_follows_optimizer_steps(build: Build, folder: Path) -> None:
    trainer = build(
        folder, total_steps=4, lr=0.5, schedule="linear", warmup_steps=2, min_lr_ratio=0.5
    )
    assert [m["lr"] for m in train(trainer, 4)] == pytest.approx([0.25, 0.5, 0.5, 0.375])


def test_flash_attention_in_float32_is_refused() -> None:
    with pytest.raises(ValidationError, match="bfloat16"):
        TorchTrainerConfig(attention="flash_attention_2")
