"""What one demand on a RaaS came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RequirementOutcome:
    """``demand`` is what was asked, ``text`` what was seen, ``fix`` what to do if it failed. ``skipped``: it
    could not be tried, since something before it failed."""

    demand: str
    state: Literal["passed", "failed", "skipped"]
    text: str
    fix: str = ""


class RequirementFailed(Exception):
    """A demand that is not met: what was seen instead."""
