"""Policies and frozen engines play the roles of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astraflow_contrib_environment.config import RolesConfig
from astraflow_contrib_environment.playing import Play
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.seeds import derive_seed
from astraflow_core.types import ComponentContext, Prompt, Sequence, Trajectory
from astraflow_environments.pool import EnvironmentPool
from astraflow_gateway.conversation import Conversation, Episodes
from astraflow_gateway.episode import Budget


class TeamWorkflow:
    """Each role of the environment has its own conversation, with the policy or the frozen engine that plays it.
    A policy earns what its role does; the sequences of one that plays several roles have the reward of their role each,
    and the policy has the sum."""

    def __init__(self, config: RolesConfig, context: ComponentContext) -> None:
        run = context.run
        known = (*run.policies, *run.engines)
        for role, name in (*config.roles.items(), ("", config.policy)):
            if name is not None and name not in known:
                what = f"role {role!r} is played by {name!r}, which" if role else f"policy {name!r}"
                raise PreflightError(
                    f"workflow 'team': {what} is not in the run, which has {', '.join(known)}"
                )
        only = run.policies[0] if len(run.policies) == 1 else None
        self._others = config.policy or only
        self._config, self._run = config, run
        self._episodes = Episodes(run, Budget(config.max_turns, config.max_tokens))
        self._pool = EnvironmentPool(config, context)
        if "multi_role" not in self._pool.capabilities:
            raise PreflightError(
                f"workflow 'team': {self._pool.name!r} has one role; use the workflow 'environment'"
            )

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode; ``None`` where it was over before a policy that is trained had a turn. The episodes of a group
        have the same seed."""
        episode = self._episodes.begin(engines)
        async with self._pool.episode() as environment:
            names = self._names(environment.roles)
            play = Play(lambda role: Conversation(episode, names[role]), self._config.discount)
            await play.play(environment, prompt, derive_seed(self._run.seed, prompt.id))
        sequences = [
            _of_role(sequence, play.rewards.get(role, 0.0), names)
            for role, chat in play.chats.items()
            for sequence in chat.sequences()
        ]
        if not sequences:
            if set(self._run.policies) & set(names.values()):
                return None  # frozen players ended it before a policy had its turn
            raise WorkflowError(
                f"prompt {prompt.id!r}: no policy that is trained had a turn; those that had one are "
                f"{', '.join(sorted({names[role] for role in play.chats}))}"
            )
        rewards = dict.fromkeys((sequence.policy for sequence in sequences), 0.0)
        for role, reward in play.rewards.items():
            if names[role] in rewards:
                rewards[names[role]] += reward
        metrics = {**episode.metrics(), **play.metrics}
        return Trajectory(tuple(sequences), tuple(episode.completions), rewards, metrics)

    def _names(self, roles: tuple[str, ...]) -> dict[str, str]:
        """Role → who plays it."""
        names = {role: self._config.roles.get(role) or self._others for role in roles}
        unknown = sorted(self._config.roles.keys() - names.keys())
        open_roles = [role for role, name in names.items() if name is None]
        if unknown or open_roles:
            wrong = (
                f"has no role {unknown[0]!r}"
                if unknown
                else f"has a role {open_roles[0]!r} without a policy"
            )
            raise PreflightError(
                f"workflow 'team': environment {self._pool.name!r} {wrong}; its roles are {', '.join(roles)}, to be "
                "named in [workflow.roles]"
            )
        return {role: name for role, name in names.items() if name is not None}


def _of_role(sequence: Sequence, reward: float, names: Mapping[str, str]) -> Sequence:
    """With its own reward if its policy also plays other roles; else the trajectory's reward is the role's."""
    if list(names.values()).count(sequence.policy) == 1:
        return sequence
    return replace(sequence, reward=reward)
