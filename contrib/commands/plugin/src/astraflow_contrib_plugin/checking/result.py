"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``summary`` is one line; ``problems`` are what must be changed, or of ``not checked`` the reason."""

    name: str
    verdict: Verdict
    summary: str
    problems: tuple[str, ...] = ()


def judged(name: str, summary: str, problems: list[str]) -> CheckResult:
    """Failed if there is a problem; ``summary`` is the line of a check that passed."""
    if not problems:
        return CheckResult(name, "passed", summary)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return CheckResult(name, "failed", count, tuple(problems))


def not_checked(name: str, reason: str) -> CheckResult:
    """A check that could not be made, with the reason and what to do."""
    return CheckResult(name, "not checked", reason)
