"""Tests of advantages and weights in the algorithm suite; they need no framework."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch
from astraflow_testing.conformance._algorithms import loss_cases as cases
from astraflow_testing.conformance.subject import violated

LAGS = range(9)
"""Staleness of the rows in the test of staleness, in versions."""
STALE = np.cumsum((0, *cases.GROUPS[:-1])).tolist()
"""The rows that are made stale there, one at a time: the first of each group."""


def violated_by(did: str, demands: str) -> NoReturn:
    """Fail, with what an algorithm ``did`` and what its protocol ``demands``."""
    violated("protocols/algorithm", did, demands)


class AdvantageTests:
    """Inherited by ``AlgorithmConformance``, which defines the fixtures."""

    def test_advantages_and_weights_have_their_shape(
        self, algorithms: dict[str, Algorithm]
    ) -> None:
        """float32 ``[N]``, finite at trained tokens; weights 0 elsewhere."""
        for name, algorithm in algorithms.items():
            batch = cases.make_case(algorithm).batch
            size, mask = len(batch.tokens), batch.loss_mask
            assert batch.advantages is not None
            for what, values in {"advantages": batch.advantages, **batch.weights}.items():
                if values.dtype != np.float32 or values.shape != (size,):
                    violated_by(
                        f"{name}: {what} is {values.dtype} {values.shape}", f"float32 [{size}]"
                    )
                if not np.isfinite(values[mask]).all():
                    violated_by(f"{name}: {what} is not finite at trained tokens", "finite numbers")
            for term, share in batch.weights.items():
                if share[~mask].any():
                    violated_by(
                        f"{name}: the weights of {term!r} are not 0 at tokens outside the loss mask",
                        "0 where the loss mask is not set",
                    )
            if not batch.weights:
                violated_by(f"{name} gives no weights", "the weights of each loss term")

    def test_groups_without_spread_give_finite_advantages(
        self, algorithms: dict[str, Algorithm]
    ) -> None:
        """All rewards equal, of any size; a group of one; a mini-batch of nothing but these."""
        for name, algorithm in algorithms.items():
            batch = cases.make_case(algorithm).batch
            for reward in (0.0, 1.0, 0.1, -1e4):
                equal = np.full(len(batch), reward, dtype=np.float32)
                none = np.zeros(len(batch), dtype=np.float32)
                one = np.ones(len(batch), dtype=np.int32)
                for size, what in ((batch.group_size, "groups of equal"), (one, "groups of one")):
                    flat = replace(
                        batch, rewards=equal, group_mean=equal, group_std=none, group_size=size
                    )
                    with np.errstate(all="ignore"):
                        given = algorithm.advantages(flat)
                    if not np.isfinite(given[flat.loss_mask]).all():
                        violated_by(
                            f"{name}: {what} rewards {reward} give advantages that are not finite",
                            "an advantage of each token",
                        )

    def test_advantages_read_the_stamped_statistics(self, algorithms: dict[str, Algorithm]) -> None:
        """A batch may hold one row of a group whose others were served before."""
        for name, algorithm in algorithms.items():
            batch = cases.make_case(algorithm).batch
            apart = replace(batch, group=np.arange(len(batch), dtype=np.int64) + 5000)
            if not np.array_equal(_trained(algorithm, batch), _trained(algorithm, apart)):
                violated_by(
                    f"{name}: advantages change when the other rows of a group are in other batches",
                    "the group statistics stamped on the row, since a batch may split groups",
                )

    def test_the_order_of_rows_does_not_matter(self, algorithms: dict[str, Algorithm]) -> None:
        """Advantages and weights move with their rows."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            order = np.random.default_rng(3).permutation(len(case.batch))
            tokens = cases.tokens_of(case.batch, order)
            moved = cases.complete(algorithm, cases.take(case, order)).batch
            assert case.batch.advantages is not None and moved.advantages is not None
            pairs = {"advantages": (case.batch.advantages, moved.advantages)}
            pairs |= {t: (s, moved.weights.get(t, s * 0)) for t, s in case.batch.weights.items()}
            trained = moved.loss_mask
            for what, (before, after) in pairs.items():
                if not np.allclose(before[tokens][trained], after[trained], rtol=1e-5, atol=1e-7):
                    violated_by(f"{name}: {what} depend on the order of rows", "no such influence")

    def test_stale_rows_never_weigh_more(self, algorithms: dict[str, Algorithm]) -> None:
        """If staleness changes the share of a row, more staleness lowers it."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            for row in STALE:
                shares = np.array([_shares(algorithm, case, row, lag) for lag in LAGS])
                if (np.diff(shares, axis=0) > 1e-6).any():
                    told = ", ".join(f"{share:.3g}" for share in shares.max(axis=1))
                    violated_by(
                        f"{name}: the share of a row in a loss term at staleness 0, 1 … is {told}",
                        "that staler data weighs the same or less",
                    )


def _trained(algorithm: Algorithm, batch: Batch) -> Any:
    return algorithm.advantages(batch)[batch.loss_mask]


def _shares(algorithm: Algorithm, case: cases.Case, row: int, lag: int) -> npt.NDArray[np.float64]:
    """The row's share of ``|weight · advantage|`` in each term if it alone is ``lag`` versions behind."""
    batch = replace(case.batch, version=50)
    behind = np.where(batch.row_of_token == row, lag, 0)
    versions = np.where(batch.loss_mask, 50 - behind, -1).astype(np.int32)
    made = cases.complete(algorithm, replace(case, batch=replace(batch, versions=versions))).batch
    assert made.advantages is not None
    shares = []
    for weight in made.weights.values():
        pull = np.abs(np.where(made.loss_mask, weight * made.advantages, 0).astype(np.float64))
        shares.append(pull[made.row_of_token == row].sum() / max(pull.sum(), 1e-30))
    return np.array(shares)
