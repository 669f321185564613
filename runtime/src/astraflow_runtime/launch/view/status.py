"""What the dataflow says, with its texts as a terminal may show them."""

from __future__ import annotations

from typing import Any

import msgspec

from astraflow_runtime.telemetry.printable import all_printable
from astraflow_wire.status import EvaluationResult, Status, read_status


def parse_status(answer: Any) -> Status:
    """The JSON of the dataflow; :class:`WireError` naming a field of a wrong type."""
    return read_status(all_printable(answer))


def parse_evaluation(entry: Any) -> EvaluationResult:
    """One entry of ``eval.history``, also as ``metrics.jsonl`` has it."""
    return msgspec.convert(entry, EvaluationResult)
