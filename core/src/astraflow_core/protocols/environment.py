"""Environment: what a policy acts in, turn by turn."""

from __future__ import annotations

from typing import Protocol

from astraflow_core.types import Action, Observation, Prompt


class Environment(Protocol):
    """Built as ``factory(config, context)``, by a workflow. An instance plays one episode after the other; one is
    built for each concurrent episode, and they share nothing that an action changes.

    Any exception of :meth:`reset` or :meth:`step` makes the episode *fail*: it has no reward, not even 0, its task is
    retried, by another RaaS if one asks soon, and the failure is counted by its kind
    (:class:`astraflow_core.errors.EnvironmentFailed` names one). A mistake of the model is not a failure: a call of a tool
    that does not exist, or text without meaning, is answered by an observation that says so.
    """

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode, whatever happened to the previous one. ``task`` and ``seed`` (0 <= seed < 2**63) decide all that
        is drawn in it; the episodes of a group have the same."""

    async def step(self, action: Action) -> Observation:
        """The observation after the action. Not called once the episode is over."""

    async def close(self) -> None:
        """Free what it holds, also in the middle of an episode; nothing is called afterwards."""


class BlockingEnvironment(Protocol):
    """An environment with capability ``blocking``: it may block, hang or crash. It runs in worker processes, is
    called from their main thread, and is killed at a deadline."""

    def reset(self, task: Prompt, seed: int) -> Observation:
        """As :meth:`Environment.reset`."""

    def step(self, action: Action) -> Observation:
        """As :meth:`Environment.step`."""

    def close(self) -> None:
        """As :meth:`Environment.close`; not called when its worker is killed."""


class HasRoles(Protocol):
    """Additional members of an environment with capability ``multi_role``."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of all roles, known when it is built; ``Observation.role`` is one of them."""
