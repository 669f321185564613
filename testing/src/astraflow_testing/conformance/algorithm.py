"""Conformance of an algorithm: its advantages, weights and loss, independent of a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.protocols.algorithm import NEEDS, Algorithm
from astraflow_testing.conformance._algorithms import loss_cases as cases
from astraflow_testing.conformance._algorithms.advantage_tests import AdvantageTests
from astraflow_testing.conformance._algorithms.advantage_tests import violated_by as _violated
from astraflow_testing.conformance._algorithms.golden import read_golden
from astraflow_testing.conformance._checks import assert_whole
from astraflow_testing.conformance.subject import Conformance, Subject, context

STEP = 1e-6
"""Nudge of a log-prob for finite differences, in nats."""
FAR = 25.0
"""Largest log-ratio, in nats, at which a loss and its gradient still are finite in float32."""
GARBAGE = 1e4


class AlgorithmConformance(Conformance, AdvantageTests):
    """Requirements of every algorithm, on the CPU in float64 (float32 where this is tested).

    Required fixture ``component``: the algorithm under test, in configurations that together need all that
    its capabilities name::

        class TestMine(AlgorithmConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("algorithm", "mine", {}, {"kl_coef": 0.05})

    An algorithm that reads named rewards is configured to read ``correct`` and ``form``, which the batches have.

    An algorithm whose gradient is by design not that of its value (a stop-gradient in its surrogate, as in
    CISPO) says so in ``expected_failures``.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the algorithm, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('algorithm', NAME, keys, more_keys …) "
            "or a Subject of your own"
        )

    @pytest.fixture
    def torch(self) -> Any:
        """The framework of the tensors; if it is not installed, the suite fails as incomplete."""
        return pytest.importorskip("torch")

    @pytest.fixture
    def golden(self) -> Path | None:
        """Optional: a JSON file with independently computed values; see :mod:`_golden`."""
        return None

    @pytest.fixture
    def algorithms(self, component: Subject, tmp_path: Path) -> dict[str, Algorithm]:
        """Each configuration, built."""
        return dict(_built(component, tmp_path))

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities; and the framework is there, without which no loss is examined."""
        assert_whole("algorithm", request, ("torch",))

    # --- needs ---------------------------------------------------------------------------------

    def test_needs_are_known_and_declared(
        self, component: Subject, algorithms: dict[str, Algorithm]
    ) -> None:
        """What a configuration needs is among :data:`NEEDS` and among the capabilities."""
        for name, algorithm in algorithms.items():
            needs: object = algorithm.needs
            if not (isinstance(needs, frozenset) and needs <= NEEDS):
                _violated(f"{name} needs {needs!r}", f"a frozenset out of {sorted(NEEDS)}")
            if undeclared := needs - component.capabilities:
                _violated(
                    f"{name} needs {sorted(undeclared)}, which its capabilities do not name",
                    "capabilities that name all that it may need (capabilities.py)",
                )

    def test_capabilities_are_used(
        self, component: Subject, algorithms: dict[str, Algorithm]
    ) -> None:
        """Each capability is needed by one of the configurations, so that the other tests cover it."""
        needed = frozenset[str]().union(*(algorithm.needs for algorithm in algorithms.values()))
        if idle := component.capabilities - needed:
            _violated(
                f"no configuration under test needs {sorted(idle)}",
                "that a declared capability can be used; add keys to the fixture `component` that do",
            )

    @pytest.mark.parametrize("need", sorted(NEEDS))
    def test_needs_have_an_effect(
        self, torch: Any, component: Subject, algorithms: dict[str, Algorithm], need: str
    ) -> None:
        """A need costs a model or a pass, so the loss or a metric must depend on it."""
        if need not in component.capabilities:
            pytest.skip(f"does not declare {need!r}")
        for name, algorithm in algorithms.items():
            if need in algorithm.needs:
                case = cases.make_case(algorithm)
                before = cases.outcome(torch, algorithm, case)
                rng = np.random.default_rng(5)
                shift = -rng.uniform(0.1, 0.3, len(case.entropy))
                shift[::4] *= 50  # beyond any threshold
                if need == "entropy":
                    other = replace(case, entropy=case.entropy + shift)
                else:
                    moved = (getattr(case.batch, need) + shift).astype(np.float32)
                    other = replace(case, batch=replace(case.batch, **{need: moved}))
                after = cases.outcome(torch, algorithm, cases.complete(algorithm, other))
                if before.terms == after.terms and before.metrics == after.metrics:
                    _violated(
                        f"{name} needs {need!r}, but its loss and its metrics do not depend on it",
                        "needs that depend on the configured keys",
                    )

    def test_a_mini_batch_without_trained_tokens_is_harmless(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """Weights stay finite, the loss is 0 and so is its gradient."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            empty = replace(case.batch, loss_mask=np.zeros_like(case.batch.loss_mask))
            with np.errstate(all="ignore"):
                case = cases.complete(algorithm, replace(case, batch=empty))
            if any(share.any() for share in case.batch.weights.values()):
                _violated(f"{name}: without trained tokens some weight is not 0", "weights of 0")
            found = cases.outcome(torch, algorithm, case)
            if found.loss != 0 or found.gradient.any() or found.entropy_gradient.any():
                _violated(f"{name}: without trained tokens the loss is {found.loss}", "a loss of 0")

    # --- the loss ------------------------------------------------------------------------------

    def test_the_loss_has_its_form(self, torch: Any, algorithms: dict[str, Algorithm]) -> None:
        """Terms of (number, scalar) with weights of their own, metrics without gradient."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            for step in (0, 10**7):
                loss = algorithm.loss(cases.inputs_of(torch, algorithm, case, step=step))
                unweighted = loss.terms.keys() - case.batch.weights.keys()
                if not loss.terms or unweighted:
                    _violated(
                        f"{name}: terms {sorted(loss.terms)}, weights {sorted(case.batch.weights)}",
                        "terms, each with weights fixed for the whole mini-batch",
                    )
                for term, (coefficient, value) in loss.terms.items():
                    factor: object = coefficient
                    if not (isinstance(factor, int | float) and np.isfinite(factor)):
                        _violated(
                            f"{name}: {term!r} has the coefficient {coefficient!r}", "a number"
                        )
                    if not torch.is_tensor(value) or value.dim() != 0:
                        _violated(f"{name}: {term!r} is {value!r}", "a scalar tensor")
                for metric, value in loss.metrics.items():
                    if not torch.is_tensor(value) or value.dim() != 0 or value.requires_grad:
                        _violated(f"{name}: {metric!r} is {value!r}", "a scalar without gradient")

    def test_masked_tokens_have_no_influence(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """Finite garbage at every position outside the loss mask changes no bit of anything."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            mask = case.batch.loss_mask
            wild = cases.complete(algorithm, cases.with_garbage(case, GARBAGE))
            assert case.batch.advantages is not None and wild.batch.advantages is not None
            pairs = {"advantages": (case.batch.advantages, wild.batch.advantages)}
            pairs |= {t: (s, wild.batch.weights[t]) for t, s in case.batch.weights.items()}
            for what, (clean, dirty) in pairs.items():
                if not np.array_equal(clean[mask], dirty[mask]):
                    _violated(f"{name}: {what} read tokens outside the loss mask", "no influence")
            clean_loss = cases.outcome(torch, algorithm, case)
            wild_loss = cases.outcome(torch, algorithm, cases.with_garbage(wild, GARBAGE))
            _same(name, "garbage outside the loss mask", clean_loss, wild_loss)
            leak = np.abs(wild_loss.gradient[~mask]) + np.abs(wild_loss.entropy_gradient[~mask])
            if leak.any():
                _violated(
                    f"{name}: tokens outside the loss mask have a gradient", "a gradient of 0"
                )

    def test_masked_tokens_may_be_left_out(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """Trainers compute log-probs only where they are needed."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            kept = np.flatnonzero(case.batch.loss_mask)
            whole = cases.outcome(torch, algorithm, case)
            part = cases.outcome(torch, algorithm, case, positions=kept)
            whole = replace(
                whole,
                gradient=whole.gradient[kept],
                entropy_gradient=whole.entropy_gradient[kept],
            )
            _same(name, "leaving out positions outside the loss mask", whole, part)

    @pytest.mark.parametrize("cuts", [2, 3, sum(cases.GROUPS)])
    def test_the_cut_into_micro_batches_does_not_matter(
        self, torch: Any, algorithms: dict[str, Algorithm], cuts: int
    ) -> None:
        """Loss, metrics and gradients of shuffled micro-batches add up to those of the whole."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            whole = cases.outcome(torch, algorithm, case)
            order = np.random.default_rng(cuts).permutation(len(case.batch))
            terms: dict[str, float] = {}
            metrics: dict[str, float] = {}
            gradient, entropy_gradient = np.zeros((2, len(case.entropy)))
            for rows in np.array_split(order, cuts):
                tokens = cases.tokens_of(case.batch, rows)
                part = cases.outcome(torch, algorithm, cases.take(case, rows))
                for sums, more in ((terms, part.terms), (metrics, part.metrics)):
                    for key, value in more.items():
                        sums[key] = sums.get(key, 0.0) + value
                gradient[tokens] = part.gradient
                entropy_gradient[tokens] = part.entropy_gradient
            summed = cases.LossOutcome(terms, metrics, gradient, entropy_gradient)
            _same(name, f"cutting the mini-batch into {cuts} parts", whole, summed)

    def test_the_gradient_is_that_of_the_loss(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """Against central differences in float64, at every trained token."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            found = cases.outcome(torch, algorithm, case)
            both = {"logprobs": found.gradient}
            if "entropy" in algorithm.needs:
                both["entropy"] = found.entropy_gradient
            for what, gradient in both.items():
                values = getattr(case, what)
                for token in np.flatnonzero(case.batch.loss_mask):
                    ends = []
                    for nudge in (STEP, -STEP):
                        moved = values.copy()
                        moved[token] += nudge
                        ends.append(
                            cases.value_of(torch, algorithm, replace(case, **{what: moved}))
                        )
                    slope = (ends[0] - ends[1]) / (2 * STEP)
                    if abs(slope - gradient[token]) > 1e-6 + 1e-4 * abs(slope):
                        _violated(
                            f"{name}: the gradient to {what} of token {token} is {gradient[token]:.6g}, "
                            f"finite differences give {slope:.6g}",
                            "log-probs with gradient, computed in the dtype of the inputs",
                        )

    def test_a_step_favours_tokens_with_high_advantages(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """On policy, a small step against the gradient raises the advantage-weighted log-probs."""
        for name, algorithm in algorithms.items():
            case = cases.make_case(algorithm)
            same = case.logprobs.astype(np.float32)
            names = ("logprobs", "reference", "proximal", "current")
            held: dict[str, Any] = {n: same for n in names if getattr(case.batch, n) is not None}
            case = cases.complete(
                algorithm,
                replace(case, batch=replace(case.batch, **held), logprobs=same.astype(np.float64)),
            )
            assert case.batch.advantages is not None
            advantages = np.where(case.batch.loss_mask, case.batch.advantages, 0)
            found = cases.outcome(torch, algorithm, case)
            if advantages.any() and not float(found.gradient @ advantages) < 0:
                _violated(
                    f"{name}: its gradient pushes tokens with high advantages down",
                    "a loss that is minimised",
                )

    def test_far_policies_give_finite_losses(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """Log-ratios up to ±25 in float32: stale data must not end a run."""
        for (name, algorithm), side in product(algorithms.items(), (-1, 0, 1)):
            case = cases.make_case(algorithm, spread=FAR, side=side)
            found = cases.outcome(torch, algorithm, case, dtype="float32")
            numbers = [*found.terms.values(), *found.metrics.values()]
            arrays = (np.array(numbers), found.gradient, found.entropy_gradient)
            if not all(np.isfinite(array).all() for array in arrays):
                _violated(
                    f"{name}: at log-ratios up to {FAR} the loss is {found.terms}, "
                    f"metrics {found.metrics}",
                    "finite terms, metrics and gradients",
                )

    def test_without_advantages_nothing_is_learned(
        self, torch: Any, algorithms: dict[str, Algorithm]
    ) -> None:
        """Rows that are as good as expected pull nowhere, unless a term of its own (KL, entropy, a critic's
        value) does."""
        for name, algorithm in algorithms.items():
            if algorithm.needs & {"reference", "entropy", "values"}:
                continue
            case = cases.make_case(algorithm)
            none = replace(case.batch, advantages=np.zeros(len(case.entropy), dtype=np.float32))
            found = cases.outcome(torch, algorithm, replace(case, batch=none))
            if found.gradient.any():
                _violated(f"{name}: advantages of 0 give a gradient", "a gradient of 0")

    def test_golden_values(
        self,
        torch: Any,
        component: Subject,
        algorithms: dict[str, Algorithm],
        golden: Path | None,
    ) -> None:
        """Advantages, weights, terms, metrics and gradients are those that were computed independently."""
        if golden is None:
            pytest.skip("no golden values are kept")
        for name, algorithm in algorithms.items():
            kept = [each for each in read_golden(golden) if each.variant == name]
            assert kept, f"{golden.name} holds no case of {name!r}"
            for each in kept:
                if difference := each.difference(torch, algorithm):
                    _violated(f"{name}: {difference}", f"the values of {golden.name}")
        named = {each.variant for each in read_golden(golden)}
        assert named <= algorithms.keys(), f"{golden.name} has cases of {named - algorithms.keys()}"

    # --- purity --------------------------------------------------------------------------------

    def test_the_same_batch_gives_the_same_result(
        self, torch: Any, component: Subject, tmp_path: Path
    ) -> None:
        """No state and no randomness: a second instance, and a second call, give the same bits."""
        for (name, first), (_, second) in zip(
            _built(component, tmp_path), _built(component, tmp_path), strict=True
        ):
            case, again, other = (cases.make_case(a) for a in (first, first, second))
            results = [
                cases.outcome(torch, first, case),
                cases.outcome(torch, first, again),
                cases.outcome(torch, second, other),
            ]
            for found in results[1:]:
                _same(name, "asking again", results[0], found, exact=True)

    def test_its_inputs_are_not_changed(self, torch: Any, algorithms: dict[str, Algorithm]) -> None:
        """Batches and tensors are shared with others."""
        for name, algorithm in algorithms.items():
            raw = cases.raw_case(algorithm)
            before = cases.copies(raw.batch)
            case = cases.complete(algorithm, raw)
            changed = [
                k for k, v in before.items() if not np.array_equal(v, getattr(case.batch, k))
            ]
            inputs = cases.inputs_of(torch, algorithm, case)
            held = cases.tensors(torch, inputs)
            copies = {key: value.detach().clone() for key, value in held.items()}
            algorithm.loss(inputs)
            changed += [key for key, value in copies.items() if not torch.equal(held[key], value)]
            if changed:
                _violated(f"{name} wrote into {sorted(set(changed))}", "frozen data (types/)")


def _built(component: Subject, directory: Path) -> Iterator[tuple[str, Algorithm]]:
    for name, build in component.variants.items():
        yield name, build(context("trainer", directory))


def _same(
    name: str, what: str, expected: cases.LossOutcome, found: cases.LossOutcome, exact: bool = False
) -> None:
    if difference := cases.difference(expected, found, exact):
        _violated(
            f"{name}: {what} changes {difference}",
            "sums of shares that are fixed for the whole mini-batch, and nothing else",
        )
