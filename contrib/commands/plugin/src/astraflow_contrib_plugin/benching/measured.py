"""One component measured in a separate process, next to another of its kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astraflow_contrib_plugin.checking.programs import TookTooLong, run_module

_TESTING = "astraflow_testing"
"""Not imported, as in a check."""
_PLAYED = ("environment", "reward", "workflow")
_REFUSED = 2
_MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """As ``python -m astraflow_testing.benchmarks`` reads it."""

    kind: str
    use: str
    keys: dict[str, Any]
    against: str
    against_keys: dict[str, Any]
    pairs: int
    source: str
    tasks: Sequence[dict[str, Any]] = ()
    model: str = ""


def measure(
    request: BenchRequest, work: Path, site: Path | None, deadline_s: float
) -> dict[str, Any]:
    """What was measured; ``{"error": …}`` if it could not be."""
    asked, result = work / "request.json", work / "result.json"
    asked.write_text(json.dumps(asdict(request)), encoding="utf-8")
    result.unlink(missing_ok=True)
    try:
        ended = run_module(
            f"{_TESTING}.benchmarks", [str(asked), str(result)], work, site, deadline_s
        )
    except TookTooLong as error:
        return {"error": f"{error}; --deadline allows more"}
    if ended.code or not result.is_file():
        lines = ended.lines if ended.code == _REFUSED else ended.lines[-_MOST_LINES:]
        said = "; ".join(line.strip() for line in lines)
        if request.kind in _PLAYED and not (request.tasks or request.source):
            said += "; --tasks names tasks that it can play"
        return {"error": said or f"it ended with exit code {ended.code}"}
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def lines_of(found: dict[str, Any]) -> list[str]:
    """What a person reads of it."""
    if "error" in found:
        return [f"not measured: {found['error']}"]
    lines = [
        f"a {found['unit']}, {found['pairs']} pairs of {found['count']}, against {found['against']}"
    ]
    for clock in ("cpu", "wall"):
        each = found[clock]
        lines.append(
            f"{clock:<4} {each['us']:>12.4g} µs, {each['against_us']:>12.4g} µs, ratio {each['ratio']:.3g} "
            f"({each['low']:.3g} to {each['high']:.3g})"
        )
    return lines
