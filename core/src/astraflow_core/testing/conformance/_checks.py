"""How a suite states a demand, ties tests to capabilities, and guards itself against being emptied."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from astraflow_core.capabilities import unknown_flags
from astraflow_core.testing.conformance.subject import Subject, violated


class Demands:
    """Says what a component did and what the protocol called ``protocol`` demands instead."""

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
    """A test that runs if its ``component`` claims all ``flags``; once claimed, a skip in it fails."""

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            missing = sorted(set(flags) - fixtures["component"].capabilities)
            if missing:
                pytest.skip(f"does not claim {', '.join(missing)}")
            try:
                test(*args, **fixtures)
            except pytest.skip.Exception as skipped:
                pytest.fail(
                    f"claims {', '.join(flags)}, but the test of it was skipped ({skipped}): "
                    "make it run, or take the capability out of the manifest",
                    pytrace=False,
                )

        return run

    return wrap


def assert_whole(kind: str, request: pytest.FixtureRequest, fixtures: tuple[str, ...]) -> None:
    """The capabilities are known, and no fixture skips what it is for.

    ``request`` is that of the suite's own test; ``fixtures`` are those that a component may override.
    """
    component: Subject = request.getfixturevalue("component")
    unknown = unknown_flags(kind, component.capabilities)
    assert not unknown, f"unknown capabilities {unknown}; see astraflow_core/capabilities.py"
    for name in fixtures:
        try:
            request.getfixturevalue(name)
        except pytest.skip.Exception as skipped:
            pytest.fail(f"the fixture {name} skips ({skipped}), and so every test that needs it")
