"""How the tasks of a run ended: five bytes for each, since a run may have millions."""

from __future__ import annotations

from array import array
from typing import Literal

Outcome = Literal["accepted", "rejected", "failed", "set_aside", "refilled"]
OUTCOMES: tuple[Outcome, ...] = ("accepted", "rejected", "failed", "set_aside", "refilled")

_LIVE = 0
"""The code of a task that has not ended; those of outcomes follow in their order."""


class EndedTasks:
    """Number of a task → its outcome and the RaaS that held it then (empty: none)."""

    def __init__(self) -> None:
        self._codes, self._holders = bytearray(), array("I")
        self._names = [""]
        self._places = {"": 0}

    def add(self, number: int, outcome: Outcome, raas: str) -> None:
        """A task has ended."""
        if (missing := number + 1 - len(self._codes)) > 0:
            self._codes.extend(bytes(missing))
            self._holders.frombytes(bytes(missing * self._holders.itemsize))
        if (place := self._places.get(raas)) is None:
            place = self._places[raas] = len(self._names)
            self._names.append(raas)
        self._codes[number] = OUTCOMES.index(outcome) + 1
        self._holders[number] = place

    def outcome(self, number: int | None) -> Outcome | None:
        """How a task ended; ``None`` if it has not."""
        if number is None or number >= len(self._codes) or self._codes[number] == _LIVE:
            return None
        return OUTCOMES[self._codes[number] - 1]

    def raas(self, number: int | None) -> str:
        """The RaaS that held it when it ended."""
        if self.outcome(number) is None:
            return ""
        assert number is not None
        return self._names[self._holders[number]]

    def columns(self) -> tuple[bytes, bytes, list[str]]:
        """All of it, to be saved: a code for each task, the place of its RaaS, and the names at these places."""
        return bytes(self._codes), self._holders.tobytes(), self._names[1:]

    def restore(self, codes: bytes, holders: bytes, names: list[str]) -> None:
        """Be what :meth:`columns` returned."""
        self._codes, self._holders = bytearray(codes), array("I")
        self._holders.frombytes(holders)
        self._names = ["", *names]
        self._places = {name: place for place, name in enumerate(self._names)}
