"""The component under test, and the base of the suites."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.types import ComponentContext, RunInfo

Factory = Callable[[ComponentContext], Any]
"""Builds a fresh, configured component."""


@dataclass(frozen=True, slots=True)
class SubjectRecipe:
    """How :func:`installed` made a subject, so that another process can make the same."""

    kind: str
    use: str
    variants: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """A component to be examined: ``variants`` maps a label to a factory of the component with some
    keys; ``capabilities`` are the flags that its manifest declares. ``recipe`` is there if :func:`installed` made
    it."""

    variants: Mapping[str, Factory]
    capabilities: frozenset[str]
    recipe: SubjectRecipe | None = None


def installed(kind: Kind | str, use: str, *variants: Mapping[str, Any]) -> Subject:
    """The component that ``use`` names, chosen, validated and built as a run would.

    Each of ``variants`` holds the keys of one configuration (none: the defaults alone); between them
    they should open every capability that the manifest declares.
    """
    catalog = Catalog.discover()
    factories: dict[str, Factory] = {}
    for keys in variants or ({},):
        selected, config = catalog.validate_options(kind, use, keys, str(kind))

        def build(context: ComponentContext, selected: Any = selected, config: Any = config) -> Any:
            return selected.build(config, context)

        label = ", ".join(f"{key} = {value!r}" for key, value in keys.items())
        factories[f"{use} ({label or 'defaults'})"] = build
    recipe = SubjectRecipe(str(kind), use, tuple(variants or ({},)))
    return Subject(factories, catalog.flags(kind, use), recipe)


POLICIES = ("solver", "verifier")
"""Policies of the run that a component under test is told about."""


def context(
    role: str,
    directory: Path,
    seed: int = 0,
    policies: tuple[str, ...] = POLICIES,
    frozen: tuple[str, ...] = (),
) -> ComponentContext:
    """What a component of policy ``"solver"`` in a process of ``role`` is told about its run, which trains a
    ``"verifier"`` too, and may have ``frozen`` engines."""
    run = RunInfo("conformance", seed, 100, 4, policies, directory, frozen)
    return ComponentContext(
        run=run, role=role, policy="solver", seed=seed, directory=directory / "state"
    )


def violated(protocol: str, did: str, demands: str) -> NoReturn:
    """Fail, with what the component ``did``, what the protocol ``demands``, and the file that says so."""
    pytest.fail(f"{did}\n{protocol}.py requires: {demands}")


def never_skipped(test: Callable[..., None], claim: str) -> Callable[..., None]:
    """The test, which fails instead of being skipped, because it covers the ``claim``."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        try:
            test(*args, **fixtures)
        except pytest.skip.Exception as skipped:
            pytest.fail(
                f"declares {claim}, but its test was skipped ({skipped}): "
                "make it run, or remove the capability from the manifest",
                pytrace=False,
            )

    return run


class Conformance:
    """Base of the suites.

    A test that a component cannot pass for a reason is named in ``expected_failures`` with that reason; it
    fails if it passes after all. Tests of a suite may be added to, not replaced.

    ``own_tests`` names, for each declared flag that the suite cannot show (it has no such hardware, or no
    counterpart), the test method of the subclass that does; a skip in it fails.
    """

    expected_failures: ClassVar[Mapping[str, str]] = {}
    own_tests: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for flag, name in cls.own_tests.items():
            if callable(test := vars(cls).get(name)):
                setattr(cls, name, never_skipped(test, flag))

    @pytest.fixture(autouse=True)
    def _expected_failure(self, request: pytest.FixtureRequest) -> None:
        name = getattr(request.node, "originalname", request.node.name)
        reason = self.expected_failures.get(name)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def test_expected_failures_name_tests_of_the_suite(self) -> None:
        """A reason without a test has no effect, or hides a renamed test."""
        unknown = [name for name in self.expected_failures if not hasattr(self, name)]
        assert not unknown, f"expected_failures names {unknown}, which the suite lacks"
        assert all(self.expected_failures.values()), "each expected failure needs its reason"

    def test_no_test_of_the_suite_is_replaced(self) -> None:
        """A test of a suite is excluded by name and reason, and never by replacing it."""
        own = __name__.rpartition(".")[0]
        lineage = type(self).__mro__
        suites = [parent for parent in lineage if parent.__module__.startswith(own)]
        replaced = {
            name
            for parent in suites
            for name in vars(parent)
            if name.startswith("test_")
            and next(each for each in lineage if name in vars(each)) not in suites
        }
        assert not replaced, (
            f"{type(self).__name__} replaces {sorted(replaced)}; name them in expected_failures with "
            "the reason instead"
        )
