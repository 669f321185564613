"""The tiers of the tests: the marks and workers of each, and the tests that are repeated on a loaded machine."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# A file stays in one worker, with its fixtures. The longest come first (`scheduling.py`), not those with most tests.
WORKERS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# Heavy tests wait more still. Those of a package share a worker, and what it started for them (`scheduling.py`).
HEAVY_WORKERS = ("--dist", "loadscope", "--no-loadscope-reorder")
# Half of the tests' time is spent waiting, so that two workers for each core find one. To collect the light tests takes 9 to
# 16 CPU seconds, which forked workers do not repeat. Elsewhere a fork is not safe after the imports of the tests.
LIGHT_WORKERS = ("--forked-workers", "4") if sys.platform == "linux" else (*WORKERS, "-n", "4")
SLOW_WORKERS = ("-n", "4", *HEAVY_WORKERS)
BACKEND_WORKERS = ("-n", "2", *HEAVY_WORKERS)
LIGHT = "not slow and not backend and not gpu"
SLOW = "slow and not backend and not gpu"
BACKEND = "backend and not gpu"

SLOW_DEMANDS = {
    "EnvironmentConformance": frozenset({"test_it_is_played_in_a_worker_process"}),
    "PromptSourceConformance": frozenset({"test_another_process_has_the_same_prompts"}),
    "TrainerConformance": frozenset({"test_recorded_experts_are_imposed"}),
    "TransportConformance": frozenset(
        {
            "test_a_killed_receiver_disturbs_nobody",
            "test_a_killed_publisher_is_an_error_in_time",
            "test_another_process_fetches_and_opens_it",
            "test_fetching_while_publishing_gives_whole_versions",
            "test_versions_published_during_a_slow_fetch_do_not_touch_it",
        }
    ),
}
"""Suite → the tests of it that start interpreters, wait for them or compute for a second, slow for each of our components."""

RECORDS = {SLOW: "slow", BACKEND: "backend"}
"""Where ``tests/durations.json`` has the files of the heavy tiers."""

# The workers keep the cores busy; threads of each would spin while they wait for one another.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment variables of all tiers."""

FAILED = 1
"""Exit code of pytest where tests failed."""
NO_TESTS = 5
"""Exit code of pytest that found none."""

ALONE = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")
AT_MOST_AGAIN = 3
"""So many failures of a tier may come from other work on the machine; more come from the change."""


def to_run_again(root: Path) -> list[str]:
    """The tests that failed in the tier that has just ended, if they are few and CI judges; else none. A developer
    sees each failure."""
    if not os.environ.get("CI"):
        return []
    try:
        record = (root / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    failed = sorted(json.loads(record))
    return failed if len(failed) <= AT_MOST_AGAIN else []


_HEAVY_ALONE = re.compile(r"^pytestmark = (?:\[[^\]]*?)?pytest\.mark\.(slow|backend|gpu)\b", re.M)


def left_out(file: Path, markers: str) -> bool:
    """Whether a file need not be imported for the light tests (``markers`` as pytest's ``-m``): ``pytestmark`` says that
    all of its tests are heavy."""
    if markers != LIGHT or not file.name.startswith("test_") or file.suffix != ".py":
        return False
    return _HEAVY_ALONE.search(file.read_text(encoding="utf-8")) is not None


HEAVY_UNTIL = "ASTRAFLOW_HEAVY_UNTIL"
"""Environment variable: seconds since 1970 after which no heavy test begins."""


def out_of_time(markers: Iterable[str], until: str, now: float) -> bool:
    """Whether a test with these markers is left out, since the time for heavy tests is over; ``until`` may be empty."""
    return bool(until) and now > float(until) and not {"slow", "backend"}.isdisjoint(markers)
