"""Rounds of sampling whose size follows from what the ones before left to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MARGIN = 1.25


@dataclass(slots=True)
class _Progress:
    """``size`` prompts are wanted of this round; ``admitted`` and ``ended`` of them so far; ``groups`` came,
    ``flat`` of them without variance, ``largest`` sequences in one. Over the rounds of a step: ``kept``
    sequences. ``last``: the step ends with this round whatever it brings."""

    size: int
    admitted: int = 0
    ended: int = 0
    groups: int = 0
    flat: int = 0
    largest: int = 1
    kept: int = 0
    last: bool = False


class Rounds:
    """The sampling batches of GRESO's repository (``ray_trainer.py``): a step begins with ``full`` prompts. If
    fewer than ``needed`` sequences with variance came of its rounds, the next round has
    ``int(missing / (1 - flat share of the round) / group size · 1.25)`` prompts, at most ``full`` and at least
    ``smallest``; one that is estimated at ``full`` or fewer is the step's last. A round in which every group
    was flat, where the repository divides by zero, is followed by a full one."""

    def __init__(self, full: int, needed: int, smallest: int) -> None:
        self._full, self._needed, self._smallest = full, needed, smallest
        self._now = _Progress(full)
        self.steps = 0

    @property
    def size(self) -> int:
        """Prompts of the running round."""
        return self._now.size

    @property
    def full(self) -> bool:
        """Whether the running round has its prompts."""
        return self._now.admitted >= self._now.size

    def admitted(self) -> None:
        """A prompt is rolled out."""
        self._now.admitted += 1

    def group(self, sequences: int, flat: bool) -> None:
        """A group came."""
        now = self._now
        now.groups += 1
        now.flat += flat
        now.largest = max(now.largest, sequences)
        now.kept += 0 if flat else sequences

    def ended(self) -> bool:
        """A prompt's task ended; whether that ended the step."""
        now = self._now
        now.ended += 1
        if not self.full or now.ended < now.admitted:
            return False
        missing = self._needed - now.kept
        if missing > 0 and not now.last:
            estimate = self._full + 1
            if now.flat < now.groups:
                estimate = int(missing / (1 - now.flat / now.groups) / now.largest * MARGIN)
            size = max(min(estimate, self._full), self._smallest)
            self._now = _Progress(size, kept=now.kept, last=estimate <= self._full)
            return False
        self._now = _Progress(self._full)
        self.steps += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where the step stands."""
        return {"now": asdict(self._now), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._now, self.steps = _Progress(**state["now"]), state["steps"]
