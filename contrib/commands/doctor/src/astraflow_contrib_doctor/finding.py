"""A finding about a machine or a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """``problem`` keeps the given run from starting, or from learning what it should; ``warning`` does not.
    ``fix`` is what to do, ``figures`` what was measured, by name."""

    level: Literal["ok", "warning", "problem"]
    subject: str
    text: str
    fix: str = ""
    figures: dict[str, float] = field(default_factory=dict)
