from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import NonFiniteLoss, PreflightError
from astraflow_core.types import Batch
from astraflow_runtime.trainer.updates.update import (
    check_needs,
    mini_batch_rows,
    mini_batches,
    prepare,
    update,
)


def make_batch(rows: int = 6, identifier: str = "p-000001") -> Batch:
    lengths = np.arange(2, 2 + rows, dtype=np.int32)
    total = int(lengths.sum())
    mask = np.ones(total, bool)
    mask[np.cumsum(lengths) - lengths] = False
    return Batch(
        id=identifier,
        policy="p",
        version=3,
        lengths=lengths,
        tokens=np.arange(total, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.full(total, -1, np.float32),
        versions=np.full(total, 3, np.int32),
        rewards=np.arange(rows, dtype=np.float32),
        group=np.zeros(rows, np.int64),
        trajectory=np.arange(rows, dtype=np.int64),
        group_size=np.full(rows, rows, np.int32),
        group_mean=np.full(rows, 2.5, np.float32),
        group_std=np.ones(rows, np.float32),
    )


class Algorithm:
    def __init__(self, *needs: str, advantage: float = 1.0) -> None:
        self.needs = frozenset(needs)
        self.advantage = advantage

    def advantages(self, batch: Batch) -> Any:
        return np.full(len(batch.tokens), self.advantage, np.float32)

    def weights(self, batch: Batch) -> Any:
        return {"policy": batch.loss_mask.astype(np.float32) / batch.trained_tokens}


class Trainer:
    """Records the mini-batches it is given."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, int]] = []
        self.parts: list[Batch] = []

    def logprobs(self, batch: Batch, model: str) -> Any:
        self.passes.append((model, len(batch)))
        return np.full(len(batch.tokens), -2, np.float32)

    def logit_gradients(self, batch: Batch) -> Any:
        self.passes.append(("logits", len(batch)))
        return np.full(len(batch.tokens), 0.5, np.float32)

    def step(self, batch: Batch, algorithm: Any, step: int) -> dict[str, float]:
        self.parts.append(batch)
        count = float(len(self.parts))
        tokens = batch.trained_tokens
        return {"loss": count, "tokens": tokens, "forward_s": 0.5, "peak_memory_gb": count}


def test_take_keeps_rows_whole() -> None:
    batch = make_batch()
    part = batch.take(np.array([4, 1]))
    assert part.lengths.tolist() == [6, 3]
    expected = [*batch.tokens[batch.offsets[4] : batch.offsets[5]]]
    expected += [*batch.tokens[batch.offsets[1] : batch.offsets[2]]]
    assert part.tokens.tolist() == expected
    assert part.rewards.tolist() == [4.0, 1.0]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])
def test_mini_batches_hold_every_row_once(count: int) -> None:
    batch = make_batch()
    parts = list(mini_batches(batch, mini_batch_rows(batch, count, seed=0)))
    assert sorted(r for part in parts for r in part.rewards.tolist()) == batch.rewards.tolist()
    assert len(parts) == min(count, 6)


def test_mini_batches_depend_on_the_seed_and_the_batch_only() -> None:
    def order(seed: int, identifier: str) -> list[float]:
        batch = make_batch(40, identifier)
        parts = mini_batches(batch, mini_batch_rows(batch, 4, seed))
        return [r for part in parts for r in part.rewards.tolist()]

    assert order(0, "a") == order(0, "a")
    assert order(0, "a") != order(1, "a")
    assert order(0, "a") != order(0, "b")


def test_an_update_makes_one_step_a_mini_batch_with_weights_of_that_mini_batch() -> None:
    trainer = Trainer()
    metrics = update(make_batch(), trainer, Algorithm(), parts=3, seed=0, step=7)  # type: ignore[arg-type]
    assert len(trainer.parts) == 3
    for part in trainer.parts:
        assert part.weights["policy"].sum() == pytest.approx(1, abs=1e-6)
    assert metrics["loss"] == 2.0
    assert metrics["tokens"] == make_batch().trained_tokens
    assert metrics["forward_s"] == 1.5
    assert metrics["peak_memory_gb"] == 3.0


def test_needs_are_met_with_as_few_passes_as_possible() -> None:
    trainer = Trainer()
    algorithm = Algorithm("reference", "proximal", "current")
    update(make_batch(), trainer, algorithm, parts=2, seed=0, step=0)  # type: ignore[arg-type]
    assert trainer.passes == [("reference", 6), ("current", 6), ("current", 3)]
    assert all(part.proximal is not None and part.current is not None for part in trainer.parts)


def test_gradients_by_the_logits_are_asked_for_once_and_go_with_their_rows() -> None:
    trainer = Trainer()
    update(make_batch(), trainer, Algorithm("logit_gradients"), parts=2, seed=0, step=0)  # type: ignore[arg-type]
    assert trainer.passes == [("logits", 6)]
    for part in trainer.parts:
        assert part.logit_gradients is not None
        assert part.logit_gradients.shape == part.tokens.shape


@pytest.mark.parametrize(
    ("parts", "passes"), [(1, []), (2, [("current", 3)]), (3, [("current", 4)])]
)
def test_a_first_mini_batch_takes_proximal_log_probs_from_its_own_pass(
    parts: int, passes: list[tuple[str, int]]
) -> None:
    trainer, algorithm = Trainer(), Algorithm("proximal")
    trainer.proximal_in_step = algorithm.proximal_in_loss = True  # type: ignore[attr-defined]
    update(make_batch(), trainer, algorithm, parts=parts, seed=0, step=0)  # type: ignore[arg-type]
    assert trainer.passes == passes
    first, *others = trainer.parts
    assert first.proximal is None
    for part in others:
        assert part.proximal is not None
        assert part.proximal.tolist() == [-2.0] * len(part.tokens)


@pytest.mark.parametrize("spared", [True, False])
@pytest.mark.parametrize("needs", [("reference", "proximal"), ("proximal",)])
def test_where_reference_and_current_model_are_one_it_is_asked_once(
    needs: tuple[str, ...], spared: bool
) -> None:
    trainer, algorithm = Trainer(), Algorithm(*needs)
    trainer.reference_is_current = True  # type: ignore[attr-defined]
    trainer.proximal_in_step = algorithm.proximal_in_loss = spared  # type: ignore[attr-defined]
    update(make_batch(), trainer, algorithm, parts=2, seed=0, step=0)  # type: ignore[arg-type]
    current = [("current", 3 if spared else 6)]
    assert trainer.passes == ([("reference", 6)] if "reference" in needs else current)
    first, second = trainer.parts
    assert (first.proximal is None) == spared
    assert second.proximal is not None
    asked = second.reference if "reference" in needs else np.full(len(second.tokens), -2.0)
    assert second.proximal.tolist() == asked.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("missing", ["trainer", "algorithm", "current"])
def test_proximal_log_probs_are_computed_before_if_anything_reads_them_before(missing: str) -> None:
    needs = ("proximal", "current") if missing == "current" else ("proximal",)
    trainer, algorithm = Trainer(), Algorithm(*needs)
    trainer.proximal_in_step = missing != "trainer"  # type: ignore[attr-defined]
    algorithm.proximal_in_loss = missing != "algorithm"  # type: ignore[attr-defined]
    update(make_batch(), trainer, algorithm, parts=1, seed=0, step=0)  # type: ignore[arg-type]
    assert trainer.passes == [("current", 6)]
    assert trainer.parts[0].proximal is not None


def test_advantages_that_are_not_finite_stop_the_update_with_the_batch_id() -> None:
    algorithm = Algorithm(advantage=float("nan"))
    with pytest.raises(NonFiniteLoss, match="p-000001"):
        prepare(make_batch(), Trainer(), algorithm)  # type: ignore[arg-type]
    untrained = replace(make_batch(), loss_mask=np.zeros(27, bool))
    prepare(untrained, Trainer(), algorithm)  # type: ignore[arg-type]


def test_needs_that_a_trainer_lacks_are_refused_by_name() -> None:
    with pytest.raises(PreflightError, match="'loss' as configured needs reference; trainer 't'"):
        check_needs(Algorithm("reference"), "loss", "t", frozenset({"proximal"}))  # type: ignore[arg-type]
    with pytest.raises(PreflightError, match="needs magic, which are unknown"):
        check_needs(Algorithm("magic"), "loss", "t", frozenset())  # type: ignore[arg-type]
    check_needs(Algorithm("current"), "loss", "t", frozenset({"proximal"}))  # type: ignore[arg-type]


class Listener:
    """Records the calls that it gets."""

    def __init__(self, wanted: bool = True) -> None:
        self.wanted, self.told = wanted, list[tuple[Batch, int]]()
        self.entropies: list[float] | None = None

    def wants(self, batch: Batch) -> bool:
        return self.wanted

    def trained(self, batch: Batch, step: int, entropies: Any) -> None:
        self.told.append((batch, step))
        self.entropies = None if entropies is None else entropies.tolist()


def stepping(parts: int, listener: Listener, *needs: str) -> Trainer:
    """A trainer whose first step has computed -3 at each token, after an update of which a listener is notified."""
    trainer, algorithm = Trainer(), Algorithm(*needs)
    trainer.step_logprobs = lambda: np.full(len(trainer.parts[0].tokens), -3, np.float32)  # type: ignore[attr-defined]
    trainer.proximal_in_step = algorithm.proximal_in_loss = True  # type: ignore[attr-defined]
    update(make_batch(), trainer, algorithm, parts=parts, seed=0, step=7, listener=listener)  # type: ignore[arg-type]
    return trainer


@pytest.mark.parametrize("parts", [1, 3])
def test_a_listener_gets_the_log_probs_of_the_first_step_beside_those_of_a_pass(parts: int) -> None:
    listener = Listener()
    trainer = stepping(parts, listener, "proximal")
    ((batch, step),) = listener.told
    assert step == 7 and batch.advantages is not None and batch.proximal is not None
    first = np.isin(batch.row_of_token, mini_batch_rows(batch, parts, 0)[0])
    assert batch.proximal.tolist() == np.where(first, -3, -2).tolist()
    # The loss of no mini-batch saw any of it.
    assert trainer.parts[0].proximal is None
    assert all(
        part.proximal is not None and (part.proximal == -2).all() for part in trainer.parts[1:]
    )


def test_log_probs_of_other_weights_are_not_reported() -> None:
    one, several, nobody = Listener(), Listener(), Listener(wanted=False)
    stepping(1, one)
    stepping(2, several)
    stepping(1, nobody)
    assert one.told[0][0].proximal is not None and (one.told[0][0].proximal == -3).all()
    assert several.told[0][0].proximal is None
    assert nobody.told == []


@pytest.mark.parametrize("parts", [1, 3])
def test_a_listener_gets_the_entropies_of_all_mini_batches(parts: int) -> None:
    listener, trainer = Listener(), Trainer()
    batch = make_batch()
    trainer.step_entropies = lambda: trainer.parts[-1].tokens.astype(np.float32)  # type: ignore[attr-defined]
    update(batch, trainer, Algorithm(), parts=parts, seed=0, step=0, listener=listener)  # type: ignore[arg-type]
    assert listener.entropies == batch.tokens.tolist()
    update(batch, Trainer(), Algorithm(), parts=parts, seed=0, step=0, listener=listener)  # type: ignore[arg-type]
    assert listener.entropies is None
