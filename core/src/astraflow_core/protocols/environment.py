"""Environment: what a model acts in, turn by turn."""

from __future__ import annotations

from typing import Protocol

from astraflow_core.types import Action, Observation, Prompt


class Environment(Protocol):
    """Built as ``factory(config, context)``, by a workflow. An instance plays one episode after the other; so many are
    built as episodes run at once, and they share nothing that an action changes.

    Whatever :meth:`reset` and :meth:`step` raise has made the episode *fail*: it earned nothing, not even 0, its task is
    tried again, by another RaaS if one asks soon, and the failure is counted by its kind
    (:class:`astraflow_core.errors.EnvironmentFailed` names one). What a model does wrong is no failure: a call of a tool
    that is not there, or text that means nothing, is answered by an observation that says so.
    """

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode, whatever became of the one before. ``task`` and ``seed`` (0 <= seed < 2**63) decide all that
        is drawn in it; the episodes of a group have the same."""

    async def step(self, action: Action) -> Observation:
        """What follows the action. Not called when the episode is over."""

    async def close(self) -> None:
        """Free what it holds, also in the middle of an episode; nothing is called afterwards."""


class BlockingEnvironment(Protocol):
    """An environment with capability ``blocking``: one that may block, hang or crash. It runs in worker processes, is
    called from their main thread, and is killed at a deadline."""

    def reset(self, task: Prompt, seed: int) -> Observation:
        """As :meth:`Environment.reset`."""

    def step(self, action: Action) -> Observation:
        """As :meth:`Environment.step`."""

    def close(self) -> None:
        """As :meth:`Environment.close`; not called when its worker is killed."""


class HasRoles(Protocol):
    """What an environment with capability ``multi_role`` offers beside."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of all roles, known when it is built; ``Observation.role`` is one of them."""
