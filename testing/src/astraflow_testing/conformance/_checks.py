"""Requirements of a suite, tests of capabilities, and checks that no test of the suite was disabled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn

import pytest

from astraflow_core.capabilities import unknown_flags
from astraflow_testing.conformance.subject import Subject, never_skipped, violated


class Demands:
    """Reports what a component did, and what the protocol named ``protocol`` requires instead."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    def that(self, kept: bool, did: str, demanded: str) -> None:
        """Fail the test unless ``kept``."""
        if not kept:
            self.broken(did, demanded)

    def broken(self, did: str, demanded: str) -> NoReturn:
        """Fail the test."""
        violated(self._protocol, did, demanded)


def capability(*flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test that runs if its ``component`` declares all ``flags``; then a skip in it is a failure."""

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        checked = never_skipped(test, ", ".join(flags))

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            missing = sorted(set(flags) - fixtures["component"].capabilities)
            if missing:
                pytest.skip(f"does not declare {', '.join(missing)}")
            checked(*args, **fixtures)

        run.opened_by = frozenset(flags)  # type: ignore[attr-defined]
        return run

    return wrap


class Claims:
    """Inherited by suites whose tests are opened by :func:`capability`."""

    own_tests: ClassVar[Mapping[str, str]]

    def test_every_declared_capability_is_tested(
        self, component: Subject, request: pytest.FixtureRequest
    ) -> None:
        """Each flag has a test that all flags claimed open, or one of the subclass's own; none of them is
        skipped by a fixture."""
        opened = {
            name: flags
            for name in dir(self)
            if name.startswith("test_")
            and (flags := getattr(getattr(self, name), "opened_by", None)) is not None
        }
        for flag in sorted(component.capabilities):
            tests = [
                name
                for name, flags in opened.items()
                if flag in flags and flags <= component.capabilities
            ]
            if callable(getattr(self, own := self.own_tests.get(flag, ""), None)):
                tests.append(own)
            assert tests, (
                f"declares {flag}, which no test here covers: write one in the subclass and name it in "
                "`own_tests`, or remove the capability from the manifest"
            )
            for name in tests:
                assert_not_skipped(request, inspect.signature(getattr(self, name)).parameters)


def assert_not_skipped(request: pytest.FixtureRequest, fixtures: Iterable[str]) -> None:
    """No fixture skips the tests that need it; names that are not fixtures (parameters of a test) are ignored."""
    for name in fixtures:
        try:
            request.getfixturevalue(name)
        except pytest.FixtureLookupError:
            continue
        except pytest.skip.Exception as skipped:
            pytest.fail(f"the fixture {name} skips ({skipped}), and so every test that needs it")


def assert_whole(kind: str, request: pytest.FixtureRequest, fixtures: tuple[str, ...]) -> None:
    """The capabilities are known, and no fixture skips the tests that need it.

    ``request`` is that of the suite's own test; ``fixtures`` are those that a component may override.
    """
    component: Subject = request.getfixturevalue("component")
    unknown = unknown_flags(kind, component.capabilities)
    assert not unknown, f"unknown capabilities {unknown}; see astraflow_core/capabilities.py"
    assert_not_skipped(request, fixtures)
