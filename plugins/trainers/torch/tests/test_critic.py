"""A critic of its own: values and gradients against transformers, apart from the policy in everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import ValidationError
from trainer_cases import Surrogate, make_batch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from astraflow_core.errors import UserError
from astraflow_core.types import Batch, Loss, LossInputs
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_tiny_model.folder import write_tiny_model

Build = Callable[..., TorchTrainer]
NEEDS = frozenset({"values"})
KEYS: dict[str, Any] = {"critic": "model", "lr": 1e-3}


class Regression(Surrogate):
    """The surrogate of the policy beside ``sum w (V - G)²`` with G the reward of the row."""

    def __init__(self, policy: bool = True) -> None:
        super().__init__(frozenset())
        self.needs, self.policy = NEEDS, policy

    def loss(self, inputs: LossInputs) -> Loss:
        share = inputs.weights["policy"]
        goal = inputs.weights["goal"]
        value = (share * (inputs.predicted_values - goal) ** 2).sum()
        terms = {"value": (1.0, value)}
        return Loss(terms | (super().loss(inputs).terms if self.policy else {}))

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        return super().weights(batch) | {"goal": batch.spread(batch.rewards)}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same vocabulary: the critic."""
    folder = tmp_path_factory.mktemp("critic")
    return write_tiny_model(folder, hidden=16, layers=1, heads=2, kv_heads=1, init_std=0.2)


def ready(trainer: TorchTrainer, algorithm: Regression, seed: int = 0) -> Batch:
    batch = make_batch(seed)
    batch = replace(batch, values=trainer.values(batch))
    return replace(batch, advantages=algorithm.advantages(batch), weights=algorithm.weights(batch))


def gradients(trainer: TorchTrainer, batch: Batch, algorithm: Regression) -> dict[str, Any]:
    """Of one step, as the optimizer sees them, unclipped."""
    seen: dict[str, Any] = {}

    def note(*_: Any) -> None:
        named = trainer._model.whole.named_parameters()
        seen.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    handle = trainer._optimizers[0].register_step_pre_hook(note)
    trainer.step(batch, algorithm, 0)
    handle.remove()
    return seen


@pytest.mark.parametrize(
    "keys", [{"micro_batch_tokens": 20}, {"layout": "packed", "gradient_checkpointing": True}]
)
def test_values_and_gradients_equal_transformers(
    build: Build, folder: Path, small: Path, keys: dict[str, Any]
) -> None:
    trainer = build(folder, needs=NEEDS, critic_model=str(small), max_grad_norm=0, **KEYS, **keys)
    assert not trainer.values(make_batch()).any()
    head = trainer._model.whole.critic.value_head
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-1, 1, head.weight.numel())[None])
    weight = head.weight.detach().double().requires_grad_()
    backbone = AutoModel.from_pretrained(small, dtype=torch.float64, attn_implementation="eager")
    algorithm = Regression(policy=False)
    batch = ready(trainer, algorithm)
    assert batch.values is not None
    total = torch.zeros((), dtype=torch.float64)
    for row, (start, end) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))[None]
        values = backbone(input_ids=ids).last_hidden_state[0, :-1] @ weight[0]
        np.testing.assert_allclose(
            batch.values[start + 1 : end], values.detach().numpy(), atol=1e-5
        )
        trained = torch.from_numpy(batch.loss_mask[start + 1 : end])
        total = total + ((values - float(batch.rewards[row])) ** 2)[trained].sum()
    (total / batch.trained_tokens).backward()
    got = gradients(trainer, batch, algorithm)
    wanted = {f"critic.backbone.{n}": p.grad for n, p in backbone.named_parameters()}
    wanted["critic.value_head.weight"] = weight.grad
    assert got.keys() == wanted.keys() | {"critic.value_head.bias"}
    for name, slope in wanted.items():
        assert slope is not None
        scale = max(slope.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            got[name].double() / scale, slope / scale, rtol=0, atol=1e-5, msg=name
        )


def test_policy_and_critic_do_not_feel_each_other(build: Build, folder: Path, small: Path) -> None:
    algorithm = Regression()
    trainer = build(folder, needs=NEEDS, critic_model=str(small), max_grad_norm=0, **KEYS)
    both = gradients(trainer, ready(trainer, algorithm), algorithm)
    alone = build(folder, needs=frozenset(), max_grad_norm=0, lr=1e-3)
    policy = Surrogate(frozenset())
    batch = make_batch()
    batch = replace(batch, advantages=policy.advantages(batch), weights=policy.weights(batch))
    expected = gradients(alone, batch, policy)  # type: ignore[arg-type]
    assert {n for n in both if not n.startswith("critic.")} == expected.keys()
    for name, slope in expected.items():
        assert torch.equal(both[name], slope), name


def test_each_gradient_is_clipped_by_its_own_norm(build: Build, folder: Path) -> None:
    algorithm = Regression()
    norms = []
    for largest in (0.0, 1e-3):
        trainer = build(folder, needs=NEEDS, max_grad_norm=largest, **KEYS)
        batch = replace(
            ready(trainer, algorithm),
            weights={n: 50 * w for n, w in ready(trainer, algorithm).weights.items()},
        )
        seen = gradients(trainer, batch, algorithm)
        norms.append(
            [
                float(torch.nn.utils.get_total_norm([g for n, g in seen.items() if inside(n)]))
                for inside in (lambda n: n.startswith("critic."), lambda n: n[:7] != "critic.")
            ]
        )
    assert min(norms[0]) > 0.1
    assert norms[1] == pytest.approx([1e-3, 1e-3], rel=1e-3)


def test_a_critic_learns_and_is_kept_but_never_published(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    plain = {t.name for t in build(folder, needs=frozenset()).export()}
    trainer, algorithm = build(folder, needs=NEEDS, total_steps=60, **KEYS), Regression()
    steps = [trainer.step(ready(trainer, algorithm), algorithm, step) for step in range(30)]
    assert steps[-1]["loss_value"] < steps[0]["loss_value"] / 4
    assert steps[0]["critic_grad_norm"] > 0
    assert {t.name for t in trainer.export()} == plain
    trainer.save_model(tmp_path / "hf")
    AutoModel.from_pretrained(tmp_path / "hf")

    (tmp_path / "state").mkdir(exist_ok=True)
    trainer.save(tmp_path / "state")
    again = build(folder, needs=NEEDS, total_steps=60, **KEYS)
    again.load(tmp_path / "state")
    for each in (trainer, again):
        each.step(ready(each, algorithm, 5), algorithm, 40)
    np.testing.assert_array_equal(again.values(make_batch(4)), trainer.values(make_batch(4)))
    np.testing.assert_array_equal(
        again.logprobs(make_batch(4), "current"), trainer.logprobs(make_batch(4), "current")
    )


def test_a_critic_of_another_vocabulary_is_refused(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    settings = AutoConfig.from_pretrained(folder)
    settings.vocab_size += 8
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path / "wider")
    with pytest.raises(UserError, match=r"critic_model .* has a vocabulary of"):
        build(folder, needs=NEEDS, critic="model", critic_model=str(tmp_path / "wider"))
    with pytest.raises(ValidationError, match="critic = 'model' only"):
        TorchTrainerConfig(critic_model=str(folder))
