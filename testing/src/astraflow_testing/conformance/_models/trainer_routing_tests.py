"""Tests of a trainer that declares ``router_replay``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.types import Batch
from astraflow_core.types.generation import not_recorded
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.qwen3 import EXPERTS, LAYERS, TOP_K, Floats
from astraflow_testing.conformance._models.trainer_checks import close_to
from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    VOCABULARY,
    PolicyGradient,
    TrainerRig,
    exported,
    ragged_batch,
    ready,
    same_update,
    token_logprobs,
)
from astraflow_testing.conformance.subject import Subject


class TrainerRoutingTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`."""

    tolerance: float

    @pytest.fixture
    def expert_model(self, tmp_path: Path) -> Path:
        """The folder of a model with experts, in the Qwen3-MoE architecture."""
        return qwen3.write_expert_model(tmp_path / "experts", init_std=0.2)

    @capability("router_replay")
    def test_recorded_experts_are_imposed(
        self, component: Subject, rig: TrainerRig, expert_model: Path
    ) -> None:
        plain = ragged_batch()
        batch = replace(plain, routed_experts=some_experts(plain))
        file = expert_model / "model.safetensors"
        expected = token_logprobs(imposed_logits(expert_model, file, batch), batch)
        free = token_logprobs(imposed_logits(expert_model, file, plain), plain)
        updates = []
        for variant in rig.variants:
            trainer = rig.build(variant, frozenset({"reference"}), expert_model)
            before = exported(trainer)
            algorithm = PolicyGradient({"reference"})
            given = ready(trainer, batch, algorithm)
            got = trainer.logprobs(batch, "current")
            close_to(got, expected, self.tolerance, f"logprobs() with recorded experts, {variant},")
            assert given.reference is not None
            close_to(
                given.reference,
                free,
                self.tolerance,
                "reference log-probs, which have no experts imposed,",
            )
            loss = trainer.step(given, algorithm, 0)["loss"]
            weight, gap = given.weights["policy"], expected - given.reference
            assert given.advantages is not None
            right = float((weight * (0.1 * gap**2 - given.advantages * expected)).sum())
            DEMANDS.that(
                abs(loss - right) <= 1e-4 * max(1, abs(right)),
                f"the loss of a step with recorded experts is {loss:.6f}, {variant}, expected {right:.6f}",
                "recorded experts are imposed on the model that is trained",
            )
            updates.append(exported(trainer))
            routers = [name for name in before if name.endswith("mlp.gate.weight")]
            DEMANDS.that(
                all(bytes(before[n].data) != bytes(updates[-1][n].data) for n in routers),
                "a step with recorded experts does not change the routers",
                "the weights of imposed experts come from the router's logits, so that it is trained",
            )
            same, how = same_update(before, updates[0], updates[-1], 1e-4)
            DEMANDS.that(
                same, f"with recorded experts, {variant}: {how}", "the same step for every cut"
            )

    @capability("router_replay")
    def test_experts_of_another_model_are_refused(
        self, component: Subject, rig: TrainerRig, expert_model: Path
    ) -> None:
        trainer, batch = rig.build(model=expert_model), ragged_batch()
        given = some_experts(batch)
        for wrong in (given[:, :1], given[:, :, :1], given + np.uint8(EXPERTS)):
            try:
                trainer.logprobs(replace(batch, routed_experts=wrong), "current")
            except Exception as error:  # noqa: BLE001 (whatever it is, it is a refusal)
                assert str(error), "the error has no message"
            else:
                DEMANDS.broken(
                    f"experts {wrong.dtype} {list(wrong.shape)} up to {wrong.max()} were accepted for a model of "
                    f"{LAYERS} layers with {EXPERTS} experts",
                    "refuse recorded experts that the model does not have",
                )


def some_experts(batch: Batch) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """Random ones for each token ``[N, layers, top_k]``, but of the second row none and of the others not all."""
    rng = np.random.default_rng(3)
    size = len(batch.tokens)
    ids = np.argsort(rng.random((size, LAYERS, EXPERTS)), -1)[..., :TOP_K].astype(np.uint8)
    ids[batch.offsets[1] : batch.offsets[2]] = not_recorded(np.uint8)
    ids[batch.offsets[1:] - 1] = not_recorded(np.uint8)
    ids[rng.random(size) < 0.1] = not_recorded(np.uint8)
    return ids


def imposed_logits(folder: Path, file: Path, batch: Batch) -> Floats:
    """Logits float64 ``[N, V]`` as a :data:`Reference` gives them, with the experts of the batch, if it has some."""
    result = np.zeros((len(batch.tokens), VOCABULARY))
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        if end - start > 1:
            read = slice(start, end - 1)
            routed = None if batch.routed_experts is None else batch.routed_experts[read]
            part = [(file, batch.tokens[read])]
            result[start + 1 : end] = qwen3.logits(folder, part, qwen3.ExpertChoice(routed))
    return result
