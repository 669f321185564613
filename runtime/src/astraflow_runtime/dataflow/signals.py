"""Which waiting requests should check again after a change of state; the HTTP layer wakes them."""

from __future__ import annotations

from typing import Protocol


class Signals(Protocol):
    """Called by the state whenever a waiting request may have an answer now."""

    def work(self) -> None:
        """There may be a task to lease."""

    def raas(self, name: str) -> None:
        """There is a notice for one RaaS."""

    def new_raas(self, name: str) -> None:
        """A RaaS of this name registered; the pending request of its predecessor is void."""

    def every_raas(self) -> None:
        """There is a notice for every RaaS."""

    def trainer(self, policy: str) -> None:
        """The trainer of ``policy`` may get a batch, or the end."""

    def new_trainer(self, policy: str) -> None:
        """A trainer of ``policy`` registered; the pending request of its predecessor is void."""

    def state(self) -> None:
        """The state of the run changed."""

    def report(self) -> None:
        """There is a new balance report."""


class NoSignals:
    """Signals for a state without waiting requests."""

    def work(self) -> None:
        """Does nothing."""

    def raas(self, name: str) -> None:
        """Does nothing."""

    def new_raas(self, name: str) -> None:
        """Does nothing."""

    def every_raas(self) -> None:
        """Does nothing."""

    def trainer(self, policy: str) -> None:
        """Does nothing."""

    def new_trainer(self, policy: str) -> None:
        """Does nothing."""

    def state(self) -> None:
        """Does nothing."""

    def report(self) -> None:
        """Does nothing."""
