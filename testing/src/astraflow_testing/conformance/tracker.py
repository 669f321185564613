"""Conformance of a tracker: its record has all data once, also after the run was resumed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.types import ComponentContext
from astraflow_testing.conformance._checks import Claims, Demands, assert_whole, capability
from astraflow_testing.conformance._trackers import cases
from astraflow_testing.conformance.subject import Conformance, Subject, context

DEMANDS = Demands("protocols/tracker")
PRECISION = 1e-6
"""Relative: some stores keep 32 bits of a number."""
SUMMARY = {"state": "finished", "steps": 3, "policies": {"solver": {"reward_last": 0.5}}}


@dataclass(frozen=True)
class Recorded:
    """The content of a record. ``values``: name → (step, value), in the order of the record; ``text``: whatever it says of the
    config; ``rollouts``: completions and prompts of all rows; ``spans``: (trace, id, parent, name, service, seconds);
    ``ended``: whether the record says that the run is over, ``None`` if a record cannot."""

    values: Mapping[str, list[tuple[int, float]]] = field(default_factory=dict)
    text: str = ""
    rollouts: list[tuple[str, str]] = field(default_factory=list)
    spans: list[tuple[str, str, str, str, str, float]] = field(default_factory=list)
    ended: bool | None = None


Read = Callable[[ComponentContext], Recorded]
Build = Callable[..., Iterator[tuple[str, ComponentContext, Any]]]


class TrackerConformance(Conformance, Claims):
    """Requirements of every tracker.

    Required fixtures: ``component``, and ``read``, which reads back what is recorded, with other code than the tracker's::

        class TestMine(TrackerConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("tracker", "mine", {"project": "p"})

            @pytest.fixture
            def read(self) -> Read:
                def recorded(context: ComponentContext) -> Recorded:
                    ...  # of the run that this context belongs to
                return recorded

    A tracker whose library is in another interpreter is tested there: the suite needs pytest, astraflow-core and
    astraflow-trackers.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the tracker, its configurations and its capabilities."""
        pytest.fail("define the fixture `component`: return installed('tracker', NAME, keys …)")

    @pytest.fixture
    def read(self) -> Read:
        """Required: ``read(context)``, a :class:`Recorded` of the run."""
        pytest.fail(
            "define the fixture `read`: return a function that reads the record of a context"
        )

    @pytest.fixture
    def build(self, component: Subject, tmp_path: Path) -> Build:
        """``build(name)``: (label, context, fresh instance) of each configuration, of the run ``name``."""

        def made(name: str = "conformance-1") -> Iterator[tuple[str, ComponentContext, Any]]:
            for number, (label, factory) in enumerate(component.variants.items()):
                directory = tmp_path / f"runs-{number}" / name
                directory.mkdir(parents=True, exist_ok=True)
                given = context("launcher", directory)
                given.directory.mkdir(parents=True, exist_ok=True)
                yield label, given, factory(given)

        return made

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities, and fixtures that do not skip."""
        assert_whole("tracker", request, ("read",))

    def test_its_methods_exist(self, component: Subject, build: Build) -> None:
        """The methods of the protocol, and those of its capabilities."""
        wanted = {"started", "metrics", "ended"} | (component.capabilities & {"rollouts", "spans"})
        for label, _, tracker in build():
            missing = sorted(n for n in wanted if not callable(getattr(tracker, n, None)))
            DEMANDS.that(not missing, f"{label} has no {', '.join(missing)}()", "these methods")

    def test_started_returns_the_place_of_the_record(self, build: Build) -> None:
        """A text for people, which may be empty."""
        for label, given, tracker in build():
            place: object = tracker.started(given.run, cases.CONFIG)
            tracker.ended("finished", SUMMARY, None)
            DEMANDS.that(isinstance(place, str), f"{label}: started() gave {place!r}", "a text")

    # --- metrics -------------------------------------------------------------------------------

    def test_every_value_is_recorded_with_its_step(self, build: Build, read: Read) -> None:
        """Those of several groups are mixed, and each has steps of its own."""
        for label, given, tracker in build():
            _play(given, tracker, cases.STEPS)
            _same(label, read(given).values, _expected(cases.STEPS))

    def test_the_last_values_are_recorded(self, build: Build, read: Read) -> None:
        """``ended`` writes everything, also the last values."""
        for label, given, tracker in build():
            _play(given, tracker, cases.STEPS[:2])
            _same(label, read(given).values, _expected(cases.STEPS[:2]))

    def test_a_resumed_run_continues_its_record(self, build: Build, read: Read) -> None:
        """A new instance with the same folder keeps the record and appends to it, without duplicates."""
        for label, given, tracker in build():
            _play(given, tracker, cases.STEPS, state="stopped")
            self._again(label, given.run.directory.name, build, read)

    def test_a_run_whose_launcher_was_killed_is_continued(self, build: Build, read: Read) -> None:
        """It ends as ``killed``, without a summary."""
        for label, given, tracker in build():
            _play(given, tracker, cases.STEPS, state="killed", summary={})
            self._again(label, given.run.directory.name, build, read)

    def _again(self, label: str, name: str, build: Build, read: Read) -> None:
        resumed = next(found for found in build(name) if found[0] == label)
        _play(resumed[1], resumed[2], cases.LATER)
        found = read(resumed[1]).values
        _same(f"{label}, resumed,", found, _expected([*cases.STEPS, *cases.LATER]))

    def test_runs_have_records_of_their_own(self, build: Build, read: Read) -> None:
        """Also if their names and policies are the same."""
        firsts, seconds = list(build("conformance-1")), list(build("conformance-2"))
        for (label, one, tracker), (_, other, second) in zip(firsts, seconds, strict=True):
            _play(one, tracker, cases.STEPS)
            _play(other, second, cases.LATER)
            _same(label, read(one).values, _expected(cases.STEPS))
            _same(label, read(other).values, _expected(cases.LATER))

    # --- everything else -----------------------------------------------------------------------

    def test_the_config_is_recorded(self, build: Build, read: Read) -> None:
        """Nested tables, lists of tables, ``None``."""
        for label, given, tracker in build():
            _play(given, tracker, cases.STEPS[:1])
            text = read(given).text
            missing = [value for value in cases.CONFIG_VALUES if value not in text]
            DEMANDS.that(
                not missing,
                f"{label}: its record of the config lacks {missing}",
                "the whole config",
            )

    def test_the_end_is_recorded(self, build: Build, read: Read, tmp_path: Path) -> None:
        """With a picture of the curves."""
        for label, given, tracker in build():
            _play(given, tracker, cases.STEPS[:1], curves=cases.picture(given.run.directory))
            DEMANDS.that(
                read(given).ended is not False,
                f"{label}: its record says that the run is still active",
                "that ended() ends the record",
            )

    def test_no_thread_or_process_is_left_running(self, build: Build) -> None:
        """It leaves no thread after the end, which would keep its process alive."""
        for label, given, tracker in build():
            before = set(threading.enumerate())
            _play(given, tracker, cases.STEPS[:2])
            until = time.monotonic() + 5
            while (left := _new_threads(before)) and time.monotonic() < until:
                time.sleep(0.02)
            DEMANDS.that(
                not left,
                f"{label} left the threads {left} after its end",
                "none that keep the process alive",
            )

    @capability("rollouts")
    def test_rows_of_rollouts_are_recorded(
        self, component: Subject, build: Build, read: Read
    ) -> None:
        """Of several updates, with texts that a model may write."""
        for label, given, tracker in build():
            tracker.started(given.run, cases.CONFIG)
            for step in (1, 2):
                tracker.rollouts(cases.rows(step))
            tracker.ended("finished", SUMMARY, None)
            found = read(given).rollouts
            demanded = "each row once, with readable text"
            DEMANDS.that(len(found) == 4, f"{label} recorded {len(found)} of 4 rows", demanded)
            for prompt, completion in found[:1]:
                kept = "1 + 1 =" in prompt and "2" in completion
                DEMANDS.that(kept, f"{label} recorded {(prompt, completion)}", demanded)
            for prompt, _ in found[1:2]:
                kept = all(part in prompt for part in ("a ", " b", "é\U0001f600"))
                DEMANDS.that(kept, f"{label} recorded {prompt[:80]!r} of an odd text", demanded)

    @capability("spans")
    def test_spans_are_recorded(self, component: Subject, build: Build, read: Read) -> None:
        """Trace, parent, service and times as they were given."""
        for label, given, tracker in build():
            tracker.started(given.run, cases.CONFIG)
            expected = []
            for number in (5, 6):
                spans = cases.spans(number)
                tracker.spans(spans)
                expected += [
                    (s["trace"], s["id"], s["parent"], s["name"], s["service"], s["start_s"])
                    for s in spans
                ]
            tracker.ended("finished", SUMMARY, None)
            found = read(given).spans
            DEMANDS.that(
                sorted(found) == sorted(expected),
                f"{label} recorded the spans {sorted(found)}",
                f"{sorted(expected)}",
            )


def _play(
    given: ComponentContext,
    tracker: Any,
    steps: list[cases.Step],
    state: str = "finished",
    summary: Mapping[str, Any] = SUMMARY,
    curves: Path | None = None,
) -> None:
    """A whole run."""
    try:
        tracker.started(given.run, cases.CONFIG)
        for step in steps:
            tracker.metrics(*step)
        tracker.ended(state, summary, curves)
    except Exception as error:  # noqa: BLE001 - told to the author
        did = f"it raised {type(error).__name__}: {error} in a run that ended as {state!r}"
        DEMANDS.broken(did, "that it accepts all data: an exception switches it off")


def _expected(steps: list[cases.Step]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for _, step, _, values in steps:
        for name, value in values.items():
            found.setdefault(name, []).append((step, value))
    return found


def _same(
    label: str,
    found: Mapping[str, list[tuple[int, float]]],
    expected: Mapping[str, list[tuple[int, float]]],
) -> None:
    for name, points in expected.items():
        there = sorted(found.get(name, []))
        kept = len(there) == len(points) and all(
            step == wanted and math.isclose(value, right, rel_tol=PRECISION, abs_tol=1e-30)
            for (step, value), (wanted, right) in zip(there, points, strict=True)
        )
        DEMANDS.that(
            kept,
            f"{label} recorded {name!r} as {there}",
            f"each step once, with its value: {points}",
        )


def _new_threads(before: set[threading.Thread]) -> list[str]:
    found = set(threading.enumerate()) - before
    return sorted(thread.name for thread in found if not thread.daemon)
