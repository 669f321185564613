"""Proximal log-probs where the current weights are those of the start of the update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_cases import make_batch

from astraflow_plugin_torch_trainer.trainer import TorchTrainer
from astraflow_runtime.trainer.updates.update import update
from astraflow_testing.conformance.subject import context, installed

Build = Callable[..., TorchTrainer]


@pytest.mark.parametrize(
    ("parts", "spared", "computed"), [(1, [8], [9, 8]), (2, [5, 4, 4], [9, 4, 4])]
)
def test_the_first_loss_computes_them(
    parts: int,
    spared: list[int],
    computed: list[int],
    build: Build,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counts the rows of each forward pass (9 of 10 rows have more than one token, of 8 something is trained), and compares the weights after an update with those after one that
    computed proximal log-probs before."""
    (factory,) = installed("algorithm", "decoupled_ppo").variants.values()
    algorithm = factory(context("trainer", tmp_path))
    found: list[Any] = []
    for sparing, rows in ((True, spared), (False, computed)):
        monkeypatch.setattr(TorchTrainer, "proximal_in_step", sparing)
        trainer = build(folder, algorithm.needs, lr=1e-2, publish_dtype="float32")
        passes: list[int] = []
        trainer._model.backbone.register_forward_pre_hook(
            lambda _, __, given, passes=passes: passes.append(len(given["input_ids"])),
            with_kwargs=True,
        )
        update(make_batch(longest=20), trainer, algorithm, parts=parts, seed=0, step=0)
        assert passes == rows
        found.append([np.frombuffer(bytes(t.data), np.float32) for t in trainer.export()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
