"""Measures what each test costs, for tests/durations.json, and notes which of those that take turns passed, for tests/turns.json."""

from __future__ import annotations

import os
from collections.abc import Iterator

import durations
import pytest
import tiers
import turns

BEGAN = pytest.StashKey[float]()
KEY = "cpu_seconds"
SUBJECT = "subject"


class Recorder:
    """A plugin of pytest that writes the record when the session ends; with xdist the workers measure."""

    def __init__(self) -> None:
        self._measured: dict[str, float] = {}
        self._ended: dict[str, tuple[str, turns.Subject]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Before any fixture."""
        item.stash[BEGAN] = _spent()
        subjects = turns.subjects([item]).values()
        item.user_properties.extend((SUBJECT, [each.unit, each.digest]) for each in subjects)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """After every fixture; the report of this phase takes the number along."""
        try:
            return (yield)
        finally:
            item.user_properties.append((KEY, _spent() - item.stash[BEGAN]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the numbers, of the workers too."""
        if report.when == "call" or not report.passed:
            self._ended.update(
                (report.nodeid, (report.outcome, turns.Subject(*map(str, value))))
                for key, value in report.user_properties
                if key == SUBJECT and isinstance(value, list)
            )
        if report.when == "teardown":
            self._measured.update(
                (report.nodeid, float(str(value)))
                for key, value in report.user_properties
                if key == KEY
            )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write, where the reports come together."""
        if not hasattr(session.config, "workerinput") and self._measured:
            config = session.config
            heavy = tiers.RECORDS.get(config.option.markexpr, "")
            some = config.args_source is config.ArgsSource.ARGS or bool(config.option.keyword)
            durations.write(durations.updated(durations.read(), self._measured, heavy, not some))
            if passed := turns.passed(self._ended):
                turns.write(passed)


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
