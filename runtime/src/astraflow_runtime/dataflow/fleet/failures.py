"""Failed tasks: a RaaS with too many consecutive failures is set aside while the others continue;
too large a share of failures of environments ends the run.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

from astraflow_runtime.dataflow.fleet.raas import Fleet, RaasRecord
from astraflow_wire.limits import MAX_FAILURE_KINDS

log = logging.getLogger(__name__)


WINDOW = 50
"""Attempts of tasks from which the share of episodes that environments fail is estimated."""


class FailureCounter:
    """Sets a RaaS aside after ``limit`` failed tasks without a success in between. ``expected``: how many RaaS the
    launcher starts; while fewer have registered, the run waits for the others. ``most_environment``: the share of
    episodes that environments may fail, estimated from the last :data:`WINDOW` attempts, each of ``group_size`` episodes;
    ``environments`` counts attempts by kind."""

    def __init__(
        self, fleet: Fleet, limit: int, expected: int, most_environment: float, group_size: int
    ) -> None:
        self._fleet, self._limit, self._expected = fleet, limit, expected
        self._most_environment, self._group_size = most_environment, group_size
        self._lately = deque[tuple[str, str]](maxlen=WINDOW)
        self.environments = Counter[str]()

    def succeeded(self, name: str) -> None:
        """A RaaS pushed a group: its count is reset, and it gets tasks again if it was set aside."""
        self._lately.append((name, ""))
        record = self._fleet.get(name)
        if record is None:
            return
        record.failures = 0
        if record.set_aside:
            record.set_aside = ""
            log.warning("RaaS %r succeeded and gets tasks again", name)
        record.any_success = True

    def failed(self, name: str, error: str, environment: str = "") -> str:
        """A RaaS failed a task; ``environment`` is the kind of failure if an environment failed.
        Returns why the run must end, or nothing.
        """
        self._lately.append((name, environment))
        if environment:
            known = environment in self.environments or len(self.environments) < MAX_FAILURE_KINDS
            self.environments[environment if known else "other"] += 1
        if why := self._environments_fail(error) if environment else "":
            return why
        record = self._fleet.get(name)
        if record is None:
            return ""
        record.failures += 1
        if record.failures < self._limit or record.set_aside:
            return ""
        record.set_aside = _reason(record, error)
        log.warning(
            "RaaS %r gets no more tasks: %s. The other RaaS continue; restart this one to give it tasks again",
            name, record.set_aside,
        )  # fmt: skip
        return self._no_raas_left()

    def _environments_fail(self, error: str) -> str:
        failed = [(name, kind) for name, kind in self._lately if kind]
        # An attempt succeeds if none of its episodes fails: with the probability (1 - share) ** group_size.
        share = 1 - (1 - len(failed) / WINDOW) ** (1 / self._group_size)
        if len(self._lately) < WINDOW or share <= self._most_environment:
            return ""
        kinds = _counted(Counter(kind for _, kind in failed))
        where = _counted(Counter(name for name, _ in failed))
        return (
            f"{len(failed)} of the last {WINDOW} attempts of tasks failed in their environments, which is about "
            f"{share:.0%} of the episodes and more than [run] max_environment_failures = "
            f"{self._most_environment:g} allows: {kinds}, on {where}; an attempt fails when the first of its "
            f"{self._group_size} episodes fails; last error: {error}"
        )

    def _no_raas_left(self) -> str:
        known = self._fleet.all()
        if len(known) < self._expected:
            return ""
        remaining = [record for record in known if record.health != "left"]
        if not all(record.set_aside for record in remaining):
            return ""
        if len(remaining) == 1:
            return remaining[0].set_aside
        each = "; ".join(f"{record.name!r}: {record.set_aside}" for record in remaining)
        return f"all tasks fail on every RaaS: {each}"


def _reason(record: RaasRecord, error: str) -> str:
    since = "without a success in between" if record.any_success else "none succeeded"
    return f"{record.failures} tasks failed in a row, {since}; last error: {error}"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
