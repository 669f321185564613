"""Who should look again after a change of state; the HTTP layer turns it into wake-ups."""

from __future__ import annotations

from typing import Protocol


class Signals(Protocol):
    """Called by the state whenever a waiting request may have an answer now."""

    def work(self) -> None:
        """There may be a task to lease."""

    def raas(self, name: str) -> None:
        """There is news for one RaaS."""

    def new_raas(self, name: str) -> None:
        """A RaaS of this name arrived; whatever the one before it waits for is void."""

    def every_raas(self) -> None:
        """There is news for all of them."""

    def trainer(self, policy: str) -> None:
        """The trainer of ``policy`` may get a batch, or the end."""

    def new_trainer(self, policy: str) -> None:
        """A trainer of ``policy`` arrived; whatever the one before it waits for is void."""

    def state(self) -> None:
        """The state of the run changed."""

    def report(self) -> None:
        """There is a new report of the balance."""


class NoSignals:
    """For state that nobody waits on."""

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
