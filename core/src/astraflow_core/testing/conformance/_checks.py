"""How a suite states a demand, ties tests to capabilities, and guards itself against being emptied."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import pytest


class Demands:
    """Says what a component did and what the protocol in ``file`` demands instead."""

    def __init__(self, file: str) -> None:
        self._file = file

    def that(self, kept: bool, did: str, demanded: str) -> None:
        """Fail the test unless ``kept``."""
        if not kept:
            self.broken(did, demanded)

    def broken(self, did: str, demanded: str) -> NoReturn:
        """Fail the test."""
        pytest.fail(f"{did}\nThe protocol demands: {demanded}\nSee {self._file}", pytrace=False)


def capability(*flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test that runs if its ``subject`` claims all ``flags``; once claimed, a skip in it fails."""

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            missing = sorted(set(flags) - fixtures["subject"].capabilities)
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


def replaced_tests(suite: type, inheritor: type) -> list[str]:
    """Tests of ``suite`` that ``inheritor`` replaces or takes away, and does not mark as an expected
    failure with a reason (``pytest.mark.xfail(reason=…)``)."""
    return [
        name
        for name in dir(suite)
        if name.startswith("test_")
        and getattr(inheritor, name, None) is not getattr(suite, name)
        and not _expected_failure(getattr(inheritor, name, None))
    ]


def _expected_failure(test: object) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
