"""The value head: its values and gradients against transformers in float64, and that it is not published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from trainer_cases import make_batch
from transformers import AutoModel

from astraflow_core.errors import UserError
from astraflow_core.types import Batch, Loss, LossInputs
from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_torch_training.gradient import Tally, accumulate
from astraflow_training.layouts import cut

Build = Callable[..., TorchTrainer]
VALUES = frozenset({"values"})
LR = {"lr": 1e-3, "value_lr_scale": 10.0}


class Regression:
    """``sum w (V - G)²`` with G the reward of the row."""

    needs = VALUES

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        return batch.spread(batch.rewards)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        share = batch.loss_mask / max(1, batch.trained_tokens)
        return {"value": share.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        assert inputs.values is not None and not inputs.values.requires_grad
        error = inputs.predicted_values - inputs.advantages
        return Loss({"value": (1.0, (inputs.weights["value"] * error**2).sum())})


def ready(trainer: TorchTrainer, seed: int = 0) -> Batch:
    batch, algorithm = make_batch(seed), Regression()
    batch = replace(batch, values=trainer.values(batch))
    return replace(batch, advantages=algorithm.advantages(batch), weights=algorithm.weights(batch))


def fixed_head(trainer: TorchTrainer) -> tuple[torch.Tensor, torch.Tensor]:
    """Set the head to known numbers and give them in float64."""
    generator = torch.Generator().manual_seed(3)
    head = trainer._model.whole.value_head
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator) / 4)
        head.bias.fill_(0.3)
    return tuple(p.detach().double().requires_grad_() for p in (head.weight, head.bias))  # type: ignore[return-value]


def by_hand(
    backbone: Any, weight: torch.Tensor, bias: torch.Tensor, batch: Batch
) -> list[torch.Tensor]:
    """The value before each token of each row but the first, row by row."""
    rows = []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        states = backbone(input_ids=ids[None]).last_hidden_state[0, :-1]
        rows.append(states @ weight[0] + bias)
    return rows


@pytest.mark.parametrize(
    "keys", [{}, {"layout": "packed"}, {"layout": "tree"}, {"micro_batch_tokens": 9}]
)
def test_values_and_gradients_equal_transformers(
    build: Build, folder: Path, keys: dict[str, Any]
) -> None:
    trainer = build(folder, needs=VALUES, **keys)
    assert not trainer.values(make_batch()).any()
    weight, bias = fixed_head(trainer)
    batch = ready(trainer)
    backbone = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    expected = by_hand(backbone, weight, bias, batch)
    total = torch.zeros((), dtype=torch.float64)
    assert batch.values is not None
    for row, values in enumerate(expected):
        start, end = int(batch.offsets[row]), int(batch.offsets[row + 1])
        assert batch.values[start] == 0
        np.testing.assert_allclose(
            batch.values[start + 1 : end], values.detach().numpy(), atol=1e-5
        )
        trained = torch.from_numpy(batch.loss_mask[start + 1 : end])
        total = total + ((values - float(batch.rewards[row])) ** 2)[trained].sum()
    (total / batch.trained_tokens).backward()

    model = trainer._model
    parts = cut(batch, batch.loss_mask, trainer._budget, trainer._layout)
    accumulate(model, batch, Regression(), 0, parts, Tally(model.device))
    got = {n: p.grad for n, p in model.whole.named_parameters() if p.grad is not None}
    wanted = {f"model.{name}": p.grad for name, p in backbone.named_parameters()}
    wanted |= {"value_head.weight": weight.grad, "value_head.bias": bias.grad}
    assert got.keys() == wanted.keys()
    for name, slope in wanted.items():
        scale = max(slope.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            got[name].double() / scale, slope / scale, rtol=0, atol=1e-5, msg=name
        )


def test_a_value_head_learns_and_is_kept_but_never_published(
    build: Build, folder: Path, tmp_path: Path
) -> None:
    plain = {t.name for t in build(folder, needs=frozenset()).export()}
    trainer, algorithm = build(folder, needs=VALUES, total_steps=60, **LR), Regression()
    losses = [trainer.step(ready(trainer), algorithm, step)["loss"] for step in range(40)]
    assert losses[-1] < losses[0] / 4
    assert {t.name for t in trainer.export()} == plain
    trainer.save_model(tmp_path / "hf")
    AutoModel.from_pretrained(tmp_path / "hf")

    (tmp_path / "state").mkdir(exist_ok=True)
    trainer.save(tmp_path / "state")
    again = build(folder, needs=VALUES, total_steps=60, **LR)
    again.load(tmp_path / "state")
    np.testing.assert_array_equal(again.values(make_batch(4)), trainer.values(make_batch(4)))
    for each in (trainer, again):
        each.step(ready(each, 5), algorithm, 40)
    np.testing.assert_array_equal(again.values(make_batch(4)), trainer.values(make_batch(4)))
    with pytest.raises(UserError, match="value_head"):
        build(folder, needs=frozenset()).load(tmp_path / "state")


def test_its_learning_rate_is_its_own(build: Build, folder: Path) -> None:
    moves = []
    for scale in (1.0, 5.0):
        trainer = build(folder, needs=VALUES, lr=1e-3, value_lr_scale=scale)
        trainer.step(ready(trainer), Regression(), 0)
        moves.append(trainer._model.whole.value_head.bias.item())
    assert moves[1] == pytest.approx(5 * moves[0], rel=1e-4) and moves[0]


def test_values_need_a_setup_for_them(build: Build, folder: Path) -> None:
    with pytest.raises(UserError, match="did not request values"):
        build(folder, needs=frozenset()).values(make_batch())
