"""Tracker: where a run is recorded, for people to look at during the run and afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from astraflow_core.types import RunInfo

Record = Mapping[str, Any]
"""JSON-like, with the keys that the libraries' ``astraflow_trackers.records`` lists."""


class Tracker(Protocol):
    """Built as ``factory(config, context)`` in a separate process, whose one thread makes all calls: it may block and
    print. A call that raises, or takes longer than ``deadline_s``, switches the tracker off, and the run continues. What it
    needs to continue the same record when the run is resumed belongs in ``context.directory``."""

    def started(self, run: RunInfo, config: Record) -> str:
        """The run starts, or continues; ``config`` is complete, nested, without secrets. Returns where to find the
        record: a URL, a folder or an empty string."""

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """A step of ``group``, a policy or ``"eval"``: finite ``values`` by name, ``time_s`` since 1970. Steps of
        a group increase, also across a resume; those of several groups are interleaved."""

    def ended(self, state: str, summary: Record, curves: Path | None) -> None:
        """Flush everything; the last call. ``state``: as in ``summary.json``, or ``"killed"``; ``curves``: a PNG."""


class TakesRollouts(Protocol):
    """With capability ``rollouts``."""

    def rollouts(self, rows: Sequence[Record]) -> None:
        """New trajectories of the run."""


class TakesSpans(Protocol):
    """With capability ``spans``."""

    def spans(self, spans: Sequence[Record]) -> None:
        """Spans of whole traces: what happened to prompts in all services."""
